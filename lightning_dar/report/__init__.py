"""Charts as data, and their writers: CSV, PNG, one HTML page. Nothing here knows of models."""
