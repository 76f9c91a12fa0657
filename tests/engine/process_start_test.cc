// What processes agree on before they start. Every process runs this, in step with the others.
#include "engine/process_start.h"

#include <gtest/gtest.h>

#include "testing/mpi_ranks.h"

namespace perigee::engine {
namespace {

using test::ProcessRanksOfTest;

StartAgreement Mine(int rank) {
  const auto r = static_cast<uint64_t>(rank);
  return {.machine = {.memory_bytes = (r + 1) * 2000,
                      .available_bytes = (r + 1) * 1000,
                      .cores = 8,
                      .random = 70 + r},
          .fingerprint = "--tp 4"};
}

TEST(ProcessStart, AllPlanWithThePoorestRanksShareAndRankZerosNumber) {
  comm::ProcessRanks& ranks = ProcessRanksOfTest();
  StartAgreement agreement = Mine(ranks.rank());
  ASSERT_TRUE(AgreeOnStart(ranks, Status::Ok(), &agreement).ok());
  // Four ranks of one host share it.
  EXPECT_EQ(agreement.machine.memory_bytes, 4u * (2000 / 4));
  EXPECT_EQ(agreement.machine.available_bytes, 4u * (1000 / 4));
  EXPECT_EQ(agreement.machine.cores, 4 * (8 / 4));
  EXPECT_EQ(agreement.machine.random, 70u);
}

TEST(ProcessStart, OneRanksReasonIsEverybodys) {
  comm::ProcessRanks& ranks = ProcessRanksOfTest();
  StartAgreement agreement = Mine(ranks.rank());
  const Status own = ranks.rank() >= 2 ? NotFound("no such folder") : Status::Ok();
  const Status status = AgreeOnStart(ranks, own, &agreement);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "rank 2: no such folder");
}

TEST(ProcessStart, DifferencesAreNamed) {
  comm::ProcessRanks& ranks = ProcessRanksOfTest();
  StartAgreement agreement = Mine(ranks.rank());
  if (ranks.rank() == 3) agreement.fingerprint = "--tp 4 of another model";
  const Status status = AgreeOnStart(ranks, Status::Ok(), &agreement);
  EXPECT_EQ(status.message(),
            "rank 3 has --tp 4 of another model, rank 0 has --tp 4: every rank needs the same program, "
            "flags and model");
}

}  // namespace
}  // namespace perigee::engine
