"""Next-character prediction with an LSTM, where every client is one poet; the poems are in the public domain."""

from typing import Any

import torch
from torch import nn

import fedstale as fs

POEMS = [  # the first stanzas of Shakespeare, Blake, Dickinson, Carroll, Rossetti and Stevenson
    """Shall I compare thee to a summer's day? Thou art more lovely and more temperate: Rough winds do shake the
    darling buds of May, And summer's lease hath all too short a date: Sometime too hot the eye of heaven""",
    """Tyger Tyger, burning bright, In the forests of the night; What immortal hand or eye, Could frame thy fearful
    symmetry? In what distant deeps or skies, Burnt the fire of thine eyes? On what wings dare he aspire?""",
    """Hope is the thing with feathers, That perches in the soul, And sings the tune without the words, And never
    stops at all, And sweetest in the gale is heard; And sore must be the storm That could abash the little""",
    """'Twas brillig, and the slithy toves Did gyre and gimble in the wabe; All mimsy were the borogoves, And the
    mome raths outgrabe. Beware the Jabberwock, my son! The jaws that bite, the claws that catch! Beware!""",
    """Who has seen the wind? Neither I nor you: But when the leaves hang trembling, The wind is passing through.
    Who has seen the wind? Neither you nor I: But when the trees bow down their heads, The wind is passing by.""",
    """In winter I get up at night And dress by yellow candle-light. In summer, quite the other way, I have to go
    to bed by day. I have to go to bed and see The birds still hopping on the tree, Or hear the people's feet.""",
]
TEXTS = [" ".join(poem.lower().split()) for poem in POEMS]
ALPHABET = sorted({*"".join(TEXTS)})
WINDOW = 16  # characters that the model reads


def windows(text):
    """All windows of a text (b, t), and for every position the character that follows it (b, t)."""
    rows = torch.tensor([ALPHABET.index(c) for c in text]).unfold(0, WINDOW + 1, 1)  # (b, t + 1)
    return rows[:, :-1], rows[:, 1:]


class CharLSTM(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), 8)
        self.lstm = nn.LSTM(8, width, batch_first=True)
        self.out = nn.Linear(width, len(ALPHABET))

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])  # (b, t, classes): a prediction at every position


if __name__ == "__main__":  # engines may start processes, which read this file again
    cut = 150  # the model trains on the beginning of a poem and is tested on its end
    task = fs.Supervised(CharLSTM, [windows(t[:cut]) for t in TEXTS], [windows(t[cut:]) for t in TEXTS])
    local = fs.Local(lr=0.01, steps=5, batch=16, optimizer="adam")
    settings: dict[str, Any] = {"rounds": 40, "seeds": (1, 2), "local": local, "name": "poets", "resume": True}
    found = fs.compare(task, ["fedavg", "auto"], fs.TwoGroups(p_min=0.1), **settings)
    found.table()  # then: fedstale report runs

    torch.manual_seed(0)
    model, text = task.model(found.runs[-1].params()), "the "
    for _ in range(40):
        likely = model(torch.tensor([[ALPHABET.index(c) for c in text[-WINDOW:]]]))[0, -1]
        text += ALPHABET[torch.multinomial((2 * likely).softmax(0), 1)]
    print(text)
