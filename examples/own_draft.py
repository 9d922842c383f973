"""A draft source of your own: it knows which country a city is in, and proposes it with all its tokens."""

from collections.abc import Sequence

from agentspec import ChatAgentSpec
from agentspec.drafts.base import Draft, DraftRequest, Offer
from agentspec.drafts.plugins import DraftContext

COUNTRIES = {"Canberra": "Australia", "Brasilia": "Brazil", "Oslo": "Norway"}


class CountryDraft(Draft):
    name = "countries"

    def __init__(self, context: DraftContext) -> None:
        self._context = context

    def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
        return [self._country(request) for request in requests]

    def _country(self, request: DraftRequest) -> Offer | None:
        place, reply = request.place, request.prefix[request.n_prompt :]
        written = b"".join(map(self._context.vocab.token_bytes, reply)).decode(errors="replace")
        country = next((country for city, country in COUNTRIES.items() if f'"{city}"' in written), None)
        if country is None or place.kind != "string" or place.path[-1] != "country" or place.value:
            return None
        tokens = self._context.tokenize(country.encode())
        return Offer(tokens, [0.9] * len(tokens))


def get_time(city: str, country: str) -> str:
    """Get the local time of a city. The country is its full English name."""
    return f"09:41 in {city}, {country}"


model = ChatAgentSpec(draft_plugins={"countries": CountryDraft}, history="memory")
reply = model.bind_tools([get_time], tool_choice="any").invoke("What time is it in Canberra?")
print(reply.tool_calls[0]["args"])
print(reply.response_metadata["agentspec"]["sources"])
