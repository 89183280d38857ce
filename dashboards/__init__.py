"""Views for people: MLflow's charts, figures, tables and reports, made from the runs in MLflow."""
