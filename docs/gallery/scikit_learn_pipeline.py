"""
In a scikit-learn pipeline
==========================

The estimators follow scikit-learn's conventions, so that its pipelines, searches and scores work on them. Here a
classifier is chosen by cross-validation, and an autoencoder provides sparse features for a classifier of
scikit-learn's own.

Install lifted-bregman with the extra ``sklearn`` for this example.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import ConfusionMatrixDisplay
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import lifted_bregman as lb
from lifted_bregman.estimators import LiftedAutoencoder, LiftedClassifier

X, y = load_digits(return_X_y=True)
X = X.astype("float32")
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)

# %%
# A classifier, chosen by cross-validation
# ----------------------------------------
# The settings of the network are parameters of the search like any others, activations included.

pipeline = make_pipeline(StandardScaler(), LiftedClassifier(epochs=15, random_state=0))
grid = {
    "liftedclassifier__hidden": [(32,), (64, 32)],
    "liftedclassifier__activation": [lb.activations.ReLU(), lb.activations.Arctan()],
}
search = GridSearchCV(pipeline, grid, cv=2).fit(X_train, y_train)
accuracy = search.score(X_test, y_test)
print("best:", search.best_params_)
print(f"{100 * accuracy:.1f} % of the held-out digits are recognised")
assert accuracy > 0.93

figure, axis = plt.subplots(figsize=(5.6, 4.2), layout="constrained")
ConfusionMatrixDisplay.from_estimator(search, X_test, y_test, ax=axis, cmap="Blues")
plt.show()

# %%
# Sparse codes as features
# ------------------------
# An autoencoder is a transformer: ``transform`` gives the codes, ``inverse_transform`` decodes them.

widths = (96, 96, 96)
autoencoder = LiftedAutoencoder(widths, code_penalty=0.09, epochs=40, random_state=0)
on_codes = make_pipeline(MinMaxScaler(), autoencoder, LogisticRegression(max_iter=1000))
on_codes.fit(X_train, y_train)

codes = on_codes[:-1].transform(X_test)
sparsity = (codes == 0).mean()
score = on_codes.score(X_test, y_test)
print(f"{100 * sparsity:.0f} % of the codes is zero")
print(f"{100 * score:.1f} % of the held-out digits are recognised from their codes")
assert sparsity > 0.5
assert score > 0.85
