"""A client of `perfkit mcp`: the official library, in a thread that keeps one server process."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LONGEST_S = 120  # that an answer may take


class Client:
    """Asks a server of some folders, which it starts and ends."""

    def __init__(self, folders: Sequence[Path], cache: Path) -> None:
        self._arguments = ["-m", "perfkit", "mcp", *map(str, folders)]
        self._environment = {
            "PERFKIT_CACHE": str(cache),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._begun = threading.Event()
        self._client: Any = None
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()])
        self._thread.start()
        assert self._begun.wait(LONGEST_S), "the server did not start"

    async def _serve(self) -> None:
        from mcp import Client as Official
        from mcp.client.stdio import StdioServerParameters

        server = StdioServerParameters(
            command=sys.executable, args=self._arguments, env=self._environment
        )
        async with Official(server) as self._client:
            self._begun.set()
            await self._ended.wait()

    def _wait_for(self, asked: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(LONGEST_S)

    def tools(self) -> list[Any]:
        """Return the tools as the server describes them."""
        return list(self._wait_for(self._client.list_tools()).tools)

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer of a tool, which both of its forms give."""
        result = self._wait_for(self._client.call_tool(tool, arguments))
        assert not result.is_error, result.content[0].text
        answer: dict[str, Any] = result.structured_content
        assert answer == json.loads(result.content[0].text)
        return answer

    def refused(self, tool: str, **arguments: Any) -> str:
        """Return why a tool refuses to answer."""
        result = self._wait_for(self._client.call_tool(tool, arguments))
        assert result.is_error, result.structured_content
        return str(result.content[0].text)

    def end(self) -> None:
        """End the server."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(LONGEST_S)
        self._loop.close()
