"""Sources of images: torchvision, folders, Parquet files, a set that ships with scikit-learn."""
