"""
Which samples are abnormal?
===========================

An autoencoder is trained on digits of one class. The energies of its layers say which other digits do not belong, and
where in the picture they do not.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_auc_score

import lifted_bregman as lb

# %%
# The usual samples are sixes. No label is needed but for choosing them.

digits = lb.data.load("digits")
sixes = digits.train.X[digits.train.y == 6].numpy().reshape(-1, 8, 8)
images, labels = digits.test.X.numpy().reshape(-1, 8, 8), digits.test.y.numpy()

detector = lb.LiftedDetector(images=(8, 8), hidden=(8, 16, 8), epochs=30, random_state=0)
detector.fit(sixes)
scores = detector.decision_function(images)
auroc = roc_auc_score(labels != 6, scores)
print(f"AUROC {auroc:.3f}; a usual sample scores about 3")
print(f"the threshold is {detector.threshold_:.2f}")

figure, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
both = [scores[labels == 6], scores[labels != 6]]
axis.hist(both, bins=40, label=["sixes", "others"], density=True)
axis.axvline(detector.threshold_, color="0.5", linewidth=1)
axis.set(xlabel="score", yticks=[])
axis.legend()
plt.show()

# %%
# Why is a sample abnormal? The parts of its score by layer sum to the score, those by pixel to the output's part.

worst = np.argsort(scores)[-3:]
usual = np.flatnonzero(labels == 6)[:1]
explanation = detector.explain(images[[*usual, *worst]])
parts = dict(zip(explanation.names, explanation.layers[-1].tolist(), strict=True))
print({name: round(part, 2) for name, part in parts.items()})
figure = explanation.figure(rows=[0, 1, 2, 3])
plt.show()

# %%
# scikit-learn's signs, for its pipelines: -1 is abnormal.

settings = {"images": (8, 8), "hidden": (8, 16, 8), "epochs": 30, "random_state": 0}
other = lb.LiftedOutlierDetector(**settings).fit(sixes)
print(other.predict(images[:10]), labels[:10])

assert auroc > 0.9
assert np.allclose(explanation.layers.sum(1).numpy(), explanation.scores.numpy())
