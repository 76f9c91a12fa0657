#pragma once

#include <memory>

#include "base/status.h"

namespace perigee::kernels::cuda {

class Library;

// What a rank's products need beside memory. On the rank's device, which is the calling thread's. In a build
// without CUDA there is none.
struct DeleteLibrary {
  void operator()(Library* library) const;
};
using LibraryPtr = std::unique_ptr<Library, DeleteLibrary>;
LibraryPtr NewLibrary();

// Whether the libraries that kernels load when they first need them are there: Unavailable names what is not.
Status CheckLibraries();

}  // namespace perigee::kernels::cuda
