"""The engine: many learners in lanes on shared streams, compiled."""
