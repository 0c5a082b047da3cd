"""The tree from prefixes to blocks.

A node is a full block's place: its token ids, below those of the blocks before it. The path from the root is the whole
prefix, and every step down compares all token ids of a block, so what is found is equal and not merely of equal hash.
There is one root per cache salt, so nothing is found under another salt. A tree of token sequences is SGLang's
RadixAttention (Zheng et al. 2024, arXiv:2312.07104); here each edge is exactly one block.

Most of what is computed nobody asks for again. So the blocks of a sequence that nothing branches off from are not made
into nodes: they hang as one `Tail` on the node above them, and become nodes when somebody looks for the first of them.

A node without a block stays while others lie below it, so that a chain that lost its middle is whole again once the
middle is computed anew. A node without either leaves the tree; sequences may still hold it as the parent of what they
compute next, and then it comes back.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from struct import iter_unpack

BYTES_PER_TOKEN = 4
NO_BLOCK = -1


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids in a fixed-width form: smaller than tuples, and hashed once."""
    return (token_ids if isinstance(token_ids, array) else array("I", token_ids)).tobytes()


class Tail:
    """Blocks one below the other whose places are not made yet. None is missing: they are dropped from the end.

    content: their tokens, `width` bytes each, and perhaps those of blocks that were dropped. blocks: at least one.
    """

    __slots__ = ("blocks", "content", "tenant", "width")

    def __init__(self, content: bytes, width: int, blocks: list[int], tenant: str) -> None:
        self.content = content
        self.width = width
        self.blocks = blocks
        self.tenant = tenant


class PrefixNode:
    """A full block's place in the tree.

    tokens: the block's, as `token_bytes`; empty at a root. block: where their KV lies, or NO_BLOCK. tenant: of the
    sequence that computed it; tenants share blocks under equal salts, so others may use it too. tail: what hangs below
    besides the children; never below a root. in_tree: whether it can be reached from its root.
    """

    __slots__ = ("block", "cache_salt", "children", "in_tree", "parent", "tail", "tenant", "tokens")

    def __init__(
        self, parent: PrefixNode | None, tokens: bytes, cache_salt: str, block: int = NO_BLOCK, tenant: str = ""
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.cache_salt = cache_salt
        self.children: dict[bytes, PrefixNode] = {}
        self.tail: Tail | None = None
        self.block = block
        self.tenant = tenant
        self.in_tree = True


class PrefixCache:
    """Which block holds which prefix. A node names one block at most, a block has one node or is in one tail."""

    def __init__(self) -> None:
        self._roots: dict[str, PrefixNode] = {}
        self._node_of: dict[int, PrefixNode] = {}  # a block's node, or the one that its tail hangs on
        self.holds = self._node_of.__contains__
        """Whether a block can be found."""

    def __len__(self) -> int:
        return len(self._node_of)

    def owner(self, block: int) -> tuple[str, str] | None:
        """The tenant whose sequence computed a block, and the salt under which it is found; None if it cannot be."""
        node = self._node_of.get(block)
        if node is None:
            return None
        if node.block == block:
            return node.tenant, node.cache_salt
        assert node.tail is not None, "what is not a node's block is in its tail"
        return node.tail.tenant, node.cache_salt

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
        """The longest run of blocks that begins with `content`, which is whole blocks of `width` bytes.

        Tails on the way become nodes, which changes nothing that can be asked for, nor the order of any answer.
        """
        found: list[PrefixNode] = []
        node = self._roots.get(cache_salt)
        if node is None:
            return found
        for (tokens,) in iter_unpack(f"{width}s", content):
            child = node.children.get(tokens) or self._unfold(node, tokens)
            if child is None or child.block == NO_BLOCK:
                break
            found.append(child)
            node = child
        return found

    def insert(
        self, parent: PrefixNode, content: bytes, width: int, blocks: list[int], tenant: str
    ) -> list[PrefixNode]:
        """Makes blocks findable one below the other, the first below `parent`. `content` are their tokens, `width`
        bytes each. A block whose prefix is found elsewhere already does not become findable.

        Returns the places of the first ones; the rest are in a tail, and are offered again with what follows them.
        """
        node = parent if parent.in_tree else self._put_back(parent)
        if node.tail is not None and self._lengthen(node, node.tail, content, blocks):
            return []
        nodes: list[PrefixNode] = []
        for place, block in enumerate(blocks):
            tokens = content[place * width : (place + 1) * width]
            child = node.children.get(tokens) or self._unfold(node, tokens)
            if child is None:
                self._hang(node, content[place * width :], width, blocks[place:], tenant, nodes)
                break
            if child.block == NO_BLOCK:
                assert block not in self._node_of, "a block holds one prefix"
                child.block = block
                child.tenant = tenant
                self._node_of[block] = child
            nodes.append(child)
            node = child
        return nodes

    def _hang(
        self, node: PrefixNode, content: bytes, width: int, blocks: list[int], tenant: str, nodes: list[PrefixNode]
    ) -> None:
        """Hangs new blocks below a node: all in its tail if nothing is there yet, else the first as a child, which is
        added to `nodes`, and the rest in the tail of that."""
        assert self._node_of.keys().isdisjoint(blocks), "a block holds one prefix"
        if node.children or node.tail is not None or node.parent is None:
            child = PrefixNode(node, content[:width], node.cache_salt, blocks[0], tenant)
            node.children[child.tokens] = self._node_of[child.block] = child
            nodes.append(child)
            node, content, blocks = child, content[width:], blocks[1:]
        if blocks:
            node.tail = Tail(content, width, blocks, tenant)
            self._node_of.update(dict.fromkeys(blocks, node))

    def _lengthen(self, node: PrefixNode, tail: Tail, content: bytes, blocks: list[int]) -> bool:
        """Whether these blocks are a node's tail and what follows it; then they are its tail now.
        Only the sequence that made it holds all of its blocks below this node, so they are the same tenant's."""
        length = len(tail.blocks)
        if blocks[:length] != tail.blocks or not content.startswith(tail.content):
            return False
        fresh = blocks[length:]
        assert self._node_of.keys().isdisjoint(fresh), "a block holds one prefix"
        tail.content, tail.blocks = content, blocks
        self._node_of.update(dict.fromkeys(fresh, node))
        return True

    def _unfold(self, node: PrefixNode, tokens: bytes) -> PrefixNode | None:
        """Makes the places of a node's tail if it begins with these tokens. Returns the first, which comes before the
        node's other children: a tail is hung only where there are none yet."""
        tail = node.tail
        if tail is None or not tail.content.startswith(tokens):
            return None
        node.tail = None
        later, node.children = node.children, {}
        place = node
        for number, block in enumerate(tail.blocks):
            step = tail.content[number * tail.width : (number + 1) * tail.width]
            child = PrefixNode(place, step, node.cache_salt, block, tail.tenant)
            place.children[step] = self._node_of[block] = child
            place = child
        node.children |= later
        return node.children[tokens]

    def below(self, first: PrefixNode) -> list[int]:
        """All blocks whose prefix begins with this one, on whatever branch. Their order does not depend on which tails
        have become nodes, for plans depend on it where the blocks become free."""
        root = self._roots.get(first.cache_salt)
        twin = None if root is None else root.children.get(first.tokens)
        blocks: list[int] = []
        rest: list[PrefixNode | Tail] = [] if twin is None else [twin]
        while rest:
            node = rest.pop()
            if isinstance(node, Tail):
                blocks += node.blocks
                continue
            if node.block != NO_BLOCK:
                blocks.append(node.block)
            if node.tail is not None:
                rest.append(node.tail)
            rest += node.children.values()
        return blocks

    def drop(self, blocks: Iterable[int]) -> None:
        """Forgets blocks; those that cannot be found are ignored."""
        take = self._node_of.pop
        for block in blocks:
            node = take(block, None)
            if node is None:
                continue
            if node.block == block:
                node.block = NO_BLOCK
            else:
                tail = node.tail
                assert tail is not None, "what is not a node's block is in its tail"
                if tail.blocks[-1] == block:
                    del tail.blocks[-1]
                    if tail.blocks:
                        continue
                    node.tail = None
                else:
                    node = self._cut(node, tail, block)
            while node.block == NO_BLOCK and not node.children and node.tail is None:
                node.in_tree = False
                parent = node.parent
                if parent is None:
                    del self._roots[node.cache_salt]
                    break
                del parent.children[node.tokens]
                node = parent

    def _cut(self, node: PrefixNode, tail: Tail, block: int) -> PrefixNode:
        """Forgets a block in the middle of a node's tail, which is unfolded for it. Returns the block's place."""
        self._unfold(node, tail.content[: tail.width])
        place = self._node_of.pop(block)
        place.block = NO_BLOCK
        return place

    def _put_back(self, node: PrefixNode) -> PrefixNode:
        """The node that has this one's place in the tree now: itself, or one that was made since it left."""
        path = []
        while not node.in_tree and node.parent is not None:
            path.append(node)
            node = node.parent
        if not node.in_tree:
            node = self.root(node.cache_salt)
        for lost in reversed(path):
            twin = node.children.get(lost.tokens) or self._unfold(node, lost.tokens)
            if twin is None:
                lost.parent, lost.in_tree = node, True
                twin = node.children[lost.tokens] = lost
            node = twin
        return node
