#pragma once

#include "harness/shapes.h"

namespace perigee::bench {

// Each registers its kernels for one shape set.
void AddGemmBenches(const ShapeSet& set);
void AddKdaBenches(const ShapeSet& set);
void AddMlaBenches(const ShapeSet& set);
void AddMoeBenches(const ShapeSet& set);
void AddRowwiseBenches(const ShapeSet& set);
void AddSamplingBenches(const ShapeSet& set);

}  // namespace perigee::bench
