"""Writes the checkpoint in this folder, by TensorFlow itself (2.21): python google_names.py

Names and shapes are those of google-research/electra, values are functions of the names.
"""

import zlib
from pathlib import Path

import numpy as np

V, E, H, F, P = 40, 16, 64, 16, 24


def values_of(name, shape):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return (rng.random(shape) - 0.5).astype(np.float32)


def list_shapes():
    shapes = {}

    def dense(name, size_in, size_out):
        shapes[f"{name}/kernel"], shapes[f"{name}/bias"] = (size_in, size_out), (size_out,)

    def norm(name, size):
        shapes[f"{name}/beta"] = shapes[f"{name}/gamma"] = (size,)

    def encoder(scope, num_layers):
        dense(f"{scope}/embeddings_project", E, H)
        for number in range(num_layers):
            layer = f"{scope}/encoder/layer_{number}"
            for part in ("query", "key", "value"):
                dense(f"{layer}/attention/self/{part}", H, H)
            dense(f"{layer}/attention/output/dense", H, H)
            norm(f"{layer}/attention/output/LayerNorm", H)
            dense(f"{layer}/intermediate/dense", H, F)
            dense(f"{layer}/output/dense", F, H)
            norm(f"{layer}/output/LayerNorm", H)

    for name, size in (("word", V), ("position", P), ("token_type", 2)):
        shapes[f"electra/embeddings/{name}_embeddings"] = size, E
    norm("electra/embeddings/LayerNorm", E)
    encoder("electra", 2)
    encoder("generator", 1)
    dense("discriminator_predictions/dense", H, H)
    dense("discriminator_predictions/dense_1", H, 1)
    dense("generator_predictions/dense", H, E)
    norm("generator_predictions/LayerNorm", E)
    shapes["generator_predictions/output_bias"] = (V,)
    shapes["electra/embeddings/LayerNorm/beta/adam_m"] = (E,)
    shapes["electra/embeddings/LayerNorm/beta/adam_v"] = (E,)
    return shapes


def main():
    import tensorflow as tf

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    for name, shape in list_shapes().items():
        v1.get_variable(name, initializer=values_of(name, shape))
    v1.get_variable("global_step", initializer=np.int64(7))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        path = str(Path(__file__).parent / "model.ckpt")
        v1.train.Saver().save(session, path, global_step=7, write_meta_graph=False)


if __name__ == "__main__":
    main()
