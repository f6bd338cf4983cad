"""What the notebooks share: pictures, the store of a run, sample data, jobs on Kaggle, kernels, studies."""
