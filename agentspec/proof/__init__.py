"""Lets a user check, on their own pair of models, that drafts do not change the law of the replies."""
