"""Where images come from: torchvision, folders, Parquet files, what a dependency ships."""
