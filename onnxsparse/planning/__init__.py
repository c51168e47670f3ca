"""What will happen to every weight, decided before anything is changed: rules, names, plans, and their record."""
