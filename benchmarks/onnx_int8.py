"""What 8 bits cost: a folder's ONNX graphs on a BEIR collection, on the CPU.

    python benchmarks/onnx_int8.py FOLDER COLLECTION [ROWS_PER_BATCH]

FOLDER has graphs from `cdejax onnx --int8`. Prints nDCG@10 with exact search, the
paired 95 % interval of the loss, the cosine to the float32 graph, and seconds.
"""

import sys
import time

import numpy as np

from cdejax.data.beir import Collection, read_collection
from cdejax.embedding.load import load
from cdejax.export.onnx import MODEL, PLACE, QUANTIZED
from cdejax.export.onnx_check import OnnxEncoder
from cdejax.folders.paths import resolve_folder
from cdejax.models.pretrained.settings import transformer_folder
from cdejax.retrieval.bootstrap import interval
from cdejax.retrieval.metrics import per_query
from cdejax.retrieval.search import search


def measure(encoder: OnnxEncoder, collection: Collection, size: int):
    """Document vectors, nDCG@10 of every query, and the seconds encoding took."""
    start = time.perf_counter()
    documents = encoder.encode(collection.documents, "document", size)
    queries = encoder.encode(collection.queries, "query", size)
    seconds = time.perf_counter() - start
    ids = search(queries, documents, 100)[1]
    scores = per_query(
        ids, collection.query_ids, collection.document_ids, collection.qrels
    )
    return documents, scores["nDCG@10"], seconds


def main() -> None:
    folder, name = sys.argv[1:3]
    size = int(sys.argv[3]) if len(sys.argv) > 3 else 16
    collection, embedder = read_collection(name), load(folder)
    place = transformer_folder(resolve_folder(folder)) / PLACE
    found = {}
    for file in (MODEL, QUANTIZED):
        found[file] = measure(OnnxEncoder(place / file, embedder), collection, size)
        _, ndcg, seconds = found[file]
        megabytes = (place / file).stat().st_size / 1e6
        print(
            f"{file}: nDCG@10 {ndcg.mean():.4f}, {megabytes:.0f} MB, {seconds:.0f} s",
            flush=True,
        )
    change = interval(found[QUANTIZED][1] - found[MODEL][1])
    cosine = (found[QUANTIZED][0] * found[MODEL][0]).sum(1)
    print(f"change of nDCG@10: {change}")
    print(f"cosine of documents: least {cosine.min():.4f}, mean {cosine.mean():.4f}")
    print(f"queries: {len(found[MODEL][1])}, documents: {np.size(cosine):,}")


if __name__ == "__main__":
    main()
