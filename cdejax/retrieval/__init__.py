"""Exact search, retrieval evaluation and its reports.

- `search.search`: exact top-k search on all devices.
- `evaluate.evaluate_embedder`: evaluates an embedder on a collection.
- `evaluate.evaluate_bm25`: evaluates BM25 on a collection.
- `evaluate.evaluate_all`: evaluates an embedder on several collections.
- `evaluate.Result`: the metrics of a model on a collection, by query.
- `bm25.BM25`: BM25 search.
- `measures.measure_of`: a measure by its name, as in `nDCG@10`.
- `metrics.per_query`: measures of each query.
- `bootstrap.interval`: bootstrap confidence interval of a mean.
- `bootstrap.paired`: paired bootstrap of the difference of two means.
- `collections.evaluation_collections`: the collections that a recipe evaluates on.
- `mteb.MtebEncoder`: an embedder as a model of mteb.
- `report.write_report`: writes tables and a chart of results.
"""
