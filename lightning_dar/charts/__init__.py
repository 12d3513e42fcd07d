"""Charts as data, and the one way to draw them: CSV, PNG and one HTML page. Nothing here knows of models."""
