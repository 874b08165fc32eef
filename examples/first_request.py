"""Your first request: `python examples/first_request.py`, with a Redis (REDIS_URL) and a worker running."""

import asyncio
from datetime import timedelta

from streamfleet.producer import Client


def question(text: str) -> dict[str, object]:
    """An OpenAI chat request."""
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 32}


async def main() -> None:
    async with Client() as fleet:
        # One request: urgent, and worthless after a minute.
        handle = await fleet.enqueue(
            question("What is the capital of France? Answer in one word."), lane="high", deadline=timedelta(minutes=1)
        )
        result = await handle.result(timeout=120)
        print(result.status, result.text)

        # Many at once, answers as they come; the same id again would be the same request.
        handles = await fleet.enqueue_many(
            {"body": question(f"Name a city in {country}."), "lane": "low", "id": f"city-{country}"}
            for country in ("Italy", "Japan", "Peru")
        )
        async for result in fleet.as_completed(handles, timeout=120):
            print(result.id, result.status, result.text, result.timings.total_ms)


if __name__ == "__main__":
    asyncio.run(main())
