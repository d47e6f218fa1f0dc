"""scikit-learn's breast cancer data, scaled, with a graph learned from them by the graphical lasso."""

from benchopt import BaseDataset
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from smadmm.learn import GraphGuidedClassifier


class Dataset(BaseDataset):
    name = "breast_cancer"
    requirements = ["scikit-learn", "pip::smadmm[learn]"]

    def get_data(self):
        X, y = load_breast_cancer(return_X_y=True)
        X = StandardScaler().fit_transform(X)
        learned = GraphGuidedClassifier(graph="glasso", random_state=0).fit(X, y)
        return {"X": X, "y": 2.0 * y - 1, "G": learned.graph_}
