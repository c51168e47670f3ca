"""Small models in which weights hide, what must be found in them, and slow references.

Shares no code with onnxsparse.
"""
