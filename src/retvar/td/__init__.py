"""The compiled heart, shared by online estimators and simulations: feeds and step-size rules."""
