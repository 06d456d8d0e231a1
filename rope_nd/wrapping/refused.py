"""Models that `wrap` refuses, and why: they do not attend over all tokens of one grid."""

REASONS = {
    "windows": "attends within windows, or in stages each with a grid of its own",
    "pooling": "pools or strides its tokens between stages, so that each stage has a grid of its own",
    "channels": "attends over channels, not over tokens: turning tokens would mean nothing",
    "scales": "attends on several scales at once; there is no one grid",
    "linear": "attends linearly, without a softmax over pairs of tokens",
    "convolution": "attends in some stages of a convolutional network, which knows where things are by its padding",
    "mixer": "mixes tokens without queries and keys: there is nothing to turn",
}

REFUSED = {
    "windows": "SwinTransformer SwinTransformerV2 SwinTransformerV2Cr MaxxVit GlobalContextVit Nest TinyVit DaVit Hiera HieraDet "
    "EfficientVitMsra",
    "pooling": "PoolingVisionTransformer PyramidVisionTransformerV2 MultiScaleVit Levit LevitDistilled Twins VOLO Visformer "
    "EfficientFormer EfficientFormerV2 NextViT",
    "channels": "Xcit EdgeNeXt",
    "scales": "CrossVit CoaT",
    "linear": "EfficientVit EfficientVitLarge SwiftFormer",
    "convolution": "FastVit MetaFormer MobileNetV3 MobileNetV5 MobileNetV5Encoder ByobNet SHViT IFormer CSATv2 CPUBone LowFormer",
    "mixer": "MlpMixer Sequencer2d EfficientViM EfficientViMDistilled",
}

WHY = {name: REASONS[kind] for kind, names in REFUSED.items() for name in names.split()}
