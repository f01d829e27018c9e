"""Surrogate vectors, clusters and batch plans.

- `vectors.vectors_stage`: computes surrogate vectors of all queries and documents.
- `vectors.Vectors`: the surrogate vectors of an artefact.
- `tfidf.fit_tfidf`: fits TF-IDF with a truncated SVD.
- `kmeans.clusters_stage`: runs spherical k-means within each domain.
- `kmeans.Clusters`: the clusters of an artefact.
- `plan.plan_stage`: writes the batch plan of a recipe.
- `plan.Plan`: which pairs form which step.
- `plans.registry.planner_of`: the planner of a recipe; `plans` has one per kind.
- `packing.pack_epoch`: packs the clusters of an epoch into batches.
- `hardness.hardness_report`: measures how hard the batches of a plan are.
- `hardness_plot.draw`: plots these measurements.
"""
