"""Public fakes, exact laws and a contract: what the project tests itself with, for tests of code built on it.

TableModel:     a Session whose logits are a function of the tokens before
TableVocab:     a Vocabulary of a few short tokens
TrieMatcher:    a Matcher that allows a finite set of replies
Asked:          a DraftRequest of plain values
ScriptedChance, enumerate_law: chance replaced by enumeration, so that the law of anything that uses
                `Randomness` is computed exactly instead of sampled
target_law, generate, total_variation: what the target alone would write, one reply of the engine, and how far
                two laws are apart
DraftContract:  the tests that every draft source passes

None of it needs a model or llama.cpp.
"""

from agentspec.testing.chance import ScriptedChance, enumerate_law
from agentspec.testing.contract import DraftContract
from agentspec.testing.fakes import Asked, TableModel, TableVocab, TrieMatcher, random_rows
from agentspec.testing.laws import Law, generate, target_law, total_variation

__all__ = [
    "Asked",
    "DraftContract",
    "Law",
    "ScriptedChance",
    "TableModel",
    "TableVocab",
    "TrieMatcher",
    "enumerate_law",
    "generate",
    "random_rows",
    "target_law",
    "total_variation",
]
