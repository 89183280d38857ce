"""What people look at: runs read back from MLflow, figures, tables."""
