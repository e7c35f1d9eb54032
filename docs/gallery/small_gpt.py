"""
A small GPT
===========

Embeddings, causal attention, layer normalisation, GELU, an output tied to the embedding: a language model in the usual
form, trained without differentiating softmax or GELU. The attention weights become variables of the lifted problem.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb

# %%
# The text is a nursery rhyme in which every verse repeats the one before and adds a line. One word is one token. For a
# text of your own, replace ``words``: ``words = Path("my.txt").read_text().split()``.

LINES = (
    "the house that Jack built",
    "the malt that lay in",
    "the rat that ate",
    "the cat that killed",
    "the dog that worried",
    "the cow with the crumpled horn that tossed",
    "the maiden all forlorn that milked",
    "the man all tattered and torn that kissed",
    "the priest all shaven and shorn that married",
    "the cock that crowed in the morn that woke",
    "the farmer sowing his corn that kept",
)
verses = [" ".join(("This is", *LINES[number::-1], ".")) for number in range(len(LINES))]
words = " ".join(verses).split()
vocabulary = sorted(set(words))
tokens = torch.tensor([vocabulary.index(word) for word in words])

# %%
# A sample is a window of 24 words; its targets are the next word at each of the 24 places.

LENGTH = 24
windows = tokens.unfold(0, LENGTH + 1, 1)
X, Y = windows[:, :-1], windows[:, 1:]
print(len(words), "words,", len(vocabulary), "different ones; windows", tuple(X.shape))

# %%
# The model is written as for any other training. Embedding and output share one weight.


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        samples, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(samples, length, self.heads, -1).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(samples, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, words, width=32, heads=4, blocks=2):
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.05)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


# %%
# Four lines train it. ``CrossEntropy`` takes a label for each place, and adds the places of a window up.

torch.manual_seed(0)
model = GPT(len(vocabulary))
problem = lb.lift(model, loss=lb.CrossEntropy(), example=X[:2])
with lb.forbid_activation_derivatives():
    result = lb.fit(problem, (X, Y), epochs=10, batch_size=16)
print(result.message)

# %%
# The summary shows how attention is lifted. The projections ``qkv`` are a variable. The softmax of the masked products
# is a variable with the activation softmax, and the next term multiplies it with the values. GELU is x times the normal
# distribution function Φ(x): Φ(x) is lifted, and the product is a map.

print(problem.summary())

# %%
# The model continues a verse, each time with the most likely word.


@torch.no_grad()
def recite(start, count):
    said = [vocabulary.index(word) for word in start.split()]
    for _ in range(count):
        said.append(int(model(torch.tensor([said[-LENGTH:]]))[0, -1].argmax()))
    return " ".join(vocabulary[number] for number in said)


said = recite("This is the cow", 25)
print(said)

# %%
# Nats for each word. The dashed line is a model that knows how often each word occurs, and nothing else.

history = result.history
nats = [row["objective"] / LENGTH for row in history]
counts = torch.bincount(tokens) / len(tokens)
alone = float(-(counts * counts.log()).sum())

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.plot([row["epoch"] for row in history], nats, "o-", label="GPT")
axis.axhline(alone, color="0.5", linestyle="--", label="frequencies of words")
axis.set(xlabel="epoch", ylabel="nats for a word", yscale="log")
axis.legend()
plt.show()

# %%
# The attention weights of two heads of the first block, at the variables of a forward pass. Rows attend to columns.

# sphinx_gallery_thumbnail_number = 2
shown = said.split()[:LENGTH]
sample = torch.tensor([[vocabulary.index(word) for word in shown]])
attention = problem.forward_state(sample)[problem.network.named("softmax")][0]
figure, axes = plt.subplots(1, 2, figsize=(10, 5), layout="constrained", sharey=True)
for axis, weights in zip(axes, attention, strict=False):
    image = axis.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1)
    axis.set_xticks(range(LENGTH), shown, rotation=90, fontsize=9)
axes[0].set_yticks(range(LENGTH), shown, fontsize=9)
figure.colorbar(image, ax=axes, label="attention weight", shrink=0.8)
plt.show()

# %%
# Some cross-entropy is left, because a window may begin anywhere: its first words do not say where in the rhyme it is.
#
# The lifted problem has the lengths of the example: it takes windows of 24 words only. The model itself takes shorter
# ones, as it did in ``recite``.

assert attention.shape == (4, LENGTH, LENGTH)
assert torch.allclose(attention.sum(-1), torch.ones(4, LENGTH), atol=1e-5)
assert nats[-1] < 0.1 * alone
assert said in " ".join(verses)
