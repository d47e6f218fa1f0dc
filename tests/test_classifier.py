"""The classifier: scikit-learn's own checks, its habits, its errors, and that it learns."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from smadmm.learn import GraphGuidedClassifier


@parametrize_with_checks([GraphGuidedClassifier(), GraphGuidedClassifier(loss="logistic", graph="chain")])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)
