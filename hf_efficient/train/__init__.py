"""The small parts that a recipe calls by name. None of them takes a model and trains it."""
