"""The tree from prefixes to blocks.

A node is a full block's place: its token ids, below those of the blocks before it. The path from the root is the whole
prefix, and every step down compares all token ids of a block, so what is found is equal and not merely of equal hash.
There is one root per cache salt, so nothing is found under another salt. A tree of token sequences is SGLang's
RadixAttention (Zheng et al. 2024, arXiv:2312.07104); here each edge is exactly one block.

A node without a block stays while others lie below it, so that a chain that lost its middle is whole again once the
middle is computed anew. A node without either leaves the tree; sequences may still hold it as the parent of what they
compute next, and then it comes back.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

BYTES_PER_TOKEN = 4
NO_BLOCK = -1


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids in a fixed-width form: smaller than tuples, and hashed once."""
    return array("I", token_ids).tobytes()


class PrefixNode:
    """A full block's place in the tree.

    tokens: the block's, as `token_bytes`; empty at a root. block: where their KV lies, or NO_BLOCK. tenant: of the
    sequence that computed it; tenants share blocks under equal salts, so others may use it too. in_tree: whether it can
    be reached from its root.
    """

    __slots__ = ("block", "cache_salt", "children", "in_tree", "parent", "tenant", "tokens")

    def __init__(
        self, parent: PrefixNode | None, tokens: bytes, cache_salt: str, block: int = NO_BLOCK, tenant: str = ""
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.cache_salt = cache_salt
        self.children: dict[bytes, PrefixNode] = {}
        self.block = block
        self.tenant = tenant
        self.in_tree = True


class PrefixCache:
    """Which block holds which prefix. A node names one block at most, a block has one node at most."""

    def __init__(self) -> None:
        self._roots: dict[str, PrefixNode] = {}
        self._node_of: dict[int, PrefixNode] = {}
        self.holds = self._node_of.__contains__
        """Whether a block can be found."""

    def __len__(self) -> int:
        return len(self._node_of)

    def node(self, block: int) -> PrefixNode | None:
        """A block's place; None if it cannot be found."""
        return self._node_of.get(block)

    def indexed_blocks(self) -> list[int]:
        """All blocks that can be found, in the order in which they were indexed."""
        return list(self._node_of)

    def root(self, cache_salt: str) -> PrefixNode:
        """Where the first blocks of sequences with this salt hang."""
        root = self._roots.get(cache_salt)
        if root is None:
            root = self._roots[cache_salt] = PrefixNode(None, b"", cache_salt)
        return root

    def find(self, cache_salt: str, content: bytes, width: int) -> list[PrefixNode]:
        """The longest run of blocks that begins with `content`, split into blocks of `width` bytes."""
        found: list[PrefixNode] = []
        node = self._roots.get(cache_salt)
        if node is None:
            return found
        for start in range(0, len(content), width):
            node = node.children.get(content[start : start + width])
            if node is None or node.block == NO_BLOCK:
                break
            found.append(node)
        return found

    def insert(
        self, parent: PrefixNode, content: bytes, width: int, blocks: Iterable[int], tenant: str
    ) -> list[PrefixNode]:
        """Makes blocks findable one below the other, the first below `parent`, and returns their places. `content` are
        their tokens, `width` bytes each. A block whose prefix is found elsewhere already does not become findable."""
        node = parent if parent.in_tree else self._put_back(parent)
        node_of, salt = self._node_of, parent.cache_salt
        nodes: list[PrefixNode] = []
        start = 0
        for block in blocks:
            tokens = content[start : start + width]
            start += width
            children = node.children
            child = children.get(tokens)
            if child is None:
                assert block not in node_of, "a block holds one prefix"
                child = children[tokens] = node_of[block] = PrefixNode(node, tokens, salt, block, tenant)
            elif child.block == NO_BLOCK:
                assert block not in node_of, "a block holds one prefix"
                child.block = block
                child.tenant = tenant
                node_of[block] = child
            nodes.append(child)
            node = child
        return nodes

    def below(self, first: PrefixNode) -> list[int]:
        """All blocks whose prefix begins with this one, on whatever branch."""
        root = self._roots.get(first.cache_salt)
        twin = None if root is None else root.children.get(first.tokens)
        blocks, nodes = [], [] if twin is None else [twin]
        while nodes:
            node = nodes.pop()
            if node.block != NO_BLOCK:
                blocks.append(node.block)
            nodes += node.children.values()
        return blocks

    def drop(self, blocks: Iterable[int]) -> None:
        """Forgets blocks; those that cannot be found are ignored."""
        take = self._node_of.pop
        for block in blocks:
            node = take(block, None)
            if node is None:
                continue
            node.block = NO_BLOCK
            while node.block == NO_BLOCK and not node.children:
                node.in_tree = False
                parent = node.parent
                if parent is None:
                    del self._roots[node.cache_salt]
                    break
                del parent.children[node.tokens]
                node = parent

    def _put_back(self, node: PrefixNode) -> PrefixNode:
        """The node that has this one's place in the tree now: itself, or one that was made since it left."""
        path = []
        while not node.in_tree and node.parent is not None:
            path.append(node)
            node = node.parent
        if not node.in_tree:
            node = self.root(node.cache_salt)
        for lost in reversed(path):
            twin = node.children.get(lost.tokens)
            if twin is None:
                lost.parent, lost.in_tree = node, True
                twin = node.children[lost.tokens] = lost
            node = twin
        return node
