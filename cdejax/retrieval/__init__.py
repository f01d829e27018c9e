"""Exact search, retrieval evaluation and reports.

- `search.search`: exact top-k search on all devices.
- `evaluate.evaluate_embedder`: evaluates an embedder on a collection.
- `evaluate.evaluate_bm25`: evaluates BM25 on a collection.
- `evaluate.evaluate_all`: evaluates an embedder on several collections.
- `evaluate.Result`: the per-query scores of a system on a collection.
- `bm25.BM25`: BM25 search.
- `measures.measure_of`: looks a measure up by its name, as in `nDCG@10`.
- `metrics.per_query`: computes measures for every query.
- `bootstrap.interval`: bootstrap confidence interval of a mean.
- `bootstrap.paired`: paired bootstrap interval of the difference of two means.
- `collections.evaluation_collections`: the collections that a recipe evaluates on.
- `mteb.MtebEncoder`: an embedder as an mteb model.
- `report.write_report`: writes scores, their summary and a chart.
"""
