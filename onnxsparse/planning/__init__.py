"""Planning: what will happen to every weight, decided before anything is changed: rules, names, plans, their record."""
