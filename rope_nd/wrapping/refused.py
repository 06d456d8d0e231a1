"""Models that `wrap` refuses, and why: no other of their kind attends over all tokens of a grid."""

REASONS = {
    "windows": "attends within windows or stages of them; positions there never leave the window",
    "pooling": "pools or strides its tokens between stages, so that each stage has a grid of its own",
    "channels": "attends over channels, not over tokens: a rotation of tokens would mean nothing",
    "scales": "attends on two scales whose class tokens meet; there is no one grid",
    "linear": "attends linearly, without a softmax over pairs of tokens",
    "convolution": "attends in late stages of a convolutional network, which knows where things are by its padding",
    "mixer": "mixes tokens by fixed matrices or recurrences: there are no queries and keys to turn",
}

REFUSED = {
    "windows": "SwinTransformer SwinTransformerV2 SwinTransformerV2Cr MaxxVit GlobalContextVit Nest TinyVit DaVit Hiera HieraDet "
    "EfficientVitMsra",
    "pooling": "PoolingVisionTransformer PyramidVisionTransformerV2 MultiScaleVit Levit LevitDistilled Twins VOLO Visformer "
    "EfficientFormer EfficientFormerV2 IFormer NextViT CSATv2",
    "channels": "Xcit EdgeNeXt",
    "scales": "CrossVit CoaT",
    "linear": "EfficientVit EfficientVitLarge SwiftFormer EfficientViM EfficientViMDistilled CPUBone LowFormer",
    "convolution": "FastVit MetaFormer MobileNetV5 MobileNetV5Encoder SHViT RepVit FocalNet",
    "mixer": "MlpMixer Sequencer2d",
}

WHY = {name: REASONS[kind] for kind, names in REFUSED.items() for name in names.split()}
