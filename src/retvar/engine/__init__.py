"""The compiled simulation engine: many learners on shared streams."""
