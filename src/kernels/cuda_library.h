#pragma once

#include <memory>

namespace perigee::kernels::cuda {

class Library;

// What a rank's products need beside memory. On the rank's device, which is the calling thread's. In a build
// without CUDA there is none.
struct DeleteLibrary {
  void operator()(Library* library) const;
};
using LibraryPtr = std::unique_ptr<Library, DeleteLibrary>;
LibraryPtr NewLibrary();

}  // namespace perigee::kernels::cuda
