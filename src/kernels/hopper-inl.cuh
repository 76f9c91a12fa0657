#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

// The PTX of Hopper that the MLA and MoE kernels use: warpgroup matrix products of bf16 with both operands in
// shared memory, mbarriers, and tensor copies (TMA). Names follow the PTX manual.
namespace perigee::kernels::hopper {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}

// ---- mbarriers

__device__ __forceinline__ void BarrierInit(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier at the same place in block `rank` of the cluster. Orders no ordinary memory access
// of other blocks (that would cost a fence a step): for handing back room that only copies write.
__device__ __forceinline__ void BarrierArriveAt(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\nbra AGAIN;\nDONE:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- clusters

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A barrier of `threads` threads among those that name it.
__device__ __forceinline__ void NamedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Ordinary writes to shared memory before it are seen by wgmma and copies after it.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Registers of each thread of the calling warpgroup; what one lowers another may take.
template <int kCount>
__device__ __forceinline__ void RaiseRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void LowerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- tensor copies; coordinates from the innermost dimension

__device__ __forceinline__ void TensorLoad2(uint32_t to, const CUtensorMap* map, uint32_t barrier, int c0,
                                            int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1)
      : "memory");
}

__device__ __forceinline__ void TensorLoad3(uint32_t to, const CUtensorMap* map, uint32_t barrier, int c0,
                                            int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

__device__ __forceinline__ void TensorLoad4(uint32_t to, const CUtensorMap* map, uint32_t barrier, int c0,
                                            int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// To the same place in every block of the cluster named by `mask`, counted on the barrier of each.
__device__ __forceinline__ void TensorLoad2Multicast(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                                     uint16_t mask, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%4, %5}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "h"(mask), "r"(c0), "r"(c1)
      : "memory");
}

// ---- warpgroup matrix products

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Descriptor of an operand in 128-byte swizzled rows, groups of eight rows 1024 bytes apart. Rows are the
// outer index (M or N, 64 values of K in a row), or K (64 values of M in a row; the product is then told to
// transpose).
__device__ __forceinline__ uint64_t Operand(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(1) << 16 |
         static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

#define PERIGEE_D4(d, i) "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3])
#define PERIGEE_D8(d, i) PERIGEE_D4(d, i), PERIGEE_D4(d, i + 4)
#define PERIGEE_D32(d, i) PERIGEE_D8(d, i), PERIGEE_D8(d, i + 8), PERIGEE_D8(d, i + 16), PERIGEE_D8(d, i + 24)

// d += a b for a [64, 16], b [16, kN] in shared memory; b in rows of K, a in rows of K
// or (kTransposeA) of M. Thread t of the warpgroup holds rows 16 (t / 32) + t % 32 / 4 (+ 8: d[4 j + 2], d[4
// j + 3]) and columns 8 j + 2 (t % 4) (+ 1).
template <int kN, int kTransposeA>
__device__ __forceinline__ void Wgmma(float* d, uint64_t a, uint64_t b) {
  if constexpr (kN == 8) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3"
        "}, %4, %5, 1, 1, 1, %6, 0;\n"
        : PERIGEE_D4(d, 0)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 16) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, %8, %9, 1, 1, 1, %10, 0;\n"
        : PERIGEE_D8(d, 0)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 32) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, 1, 1, 1, %18, 0;\n"
        : PERIGEE_D8(d, 0), PERIGEE_D8(d, 8)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 48) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23"
        "}, %24, %25, 1, 1, 1, %26, 0;\n"
        : PERIGEE_D8(d, 0), PERIGEE_D8(d, 8), PERIGEE_D8(d, 16)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 64) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, 1, 1, 1, %34, 0;\n"
        : PERIGEE_D32(d, 0)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 80) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39"
        "}, %40, %41, 1, 1, 1, %42, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D8(d, 32)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 96) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
        "}, %48, %49, 1, 1, 1, %50, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D8(d, 32), PERIGEE_D8(d, 40)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 112) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55"
        "}, %56, %57, 1, 1, 1, %58, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D8(d, 32), PERIGEE_D8(d, 40), PERIGEE_D8(d, 48)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 128) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, 1, 1, 1, %66, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D32(d, 32)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 144) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71"
        "}, %72, %73, 1, 1, 1, %74, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D32(d, 32), PERIGEE_D8(d, 64)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 160) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
        "}, %80, %81, 1, 1, 1, %82, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D32(d, 32), PERIGEE_D8(d, 64), PERIGEE_D8(d, 72)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 176) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87"
        "}, %88, %89, 1, 1, 1, %90, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D32(d, 32), PERIGEE_D8(d, 64), PERIGEE_D8(d, 72), PERIGEE_D8(d, 80)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 192) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
        "}, %96, %97, 1, 1, 1, %98, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D32(d, 32), PERIGEE_D32(d, 64)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 208) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n208k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103"
        "}, %104, %105, 1, 1, 1, %106, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D32(d, 32), PERIGEE_D32(d, 64), PERIGEE_D8(d, 96)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 224) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
        "}, %112, %113, 1, 1, 1, %114, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D32(d, 32), PERIGEE_D32(d, 64), PERIGEE_D8(d, 96), PERIGEE_D8(d, 104)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 240) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n240k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119"
        "}, %120, %121, 1, 1, 1, %122, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D32(d, 32), PERIGEE_D32(d, 64), PERIGEE_D8(d, 96), PERIGEE_D8(d, 104),
          PERIGEE_D8(d, 112)
        : "l"(a), "l"(b), "n"(kTransposeA));
  } else if constexpr (kN == 256) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, 1, 1, 1, %130, 0;\n"
        : PERIGEE_D32(d, 0), PERIGEE_D32(d, 32), PERIGEE_D32(d, 64), PERIGEE_D32(d, 96)
        : "l"(a), "l"(b), "n"(kTransposeA));
  }
}

#undef PERIGEE_D32
#undef PERIGEE_D8
#undef PERIGEE_D4

}  // namespace perigee::kernels::hopper
