#pragma once

#include <chrono>

#include "comm/process_ranks.h"

namespace perigee::test {

inline constexpr std::chrono::milliseconds kTestWatchdog{PERIGEE_TEST_WATCHDOG_MS};

// This process among those of the test, in programs linked with testing/mpi_main.cc.
comm::ProcessRanks& ProcessRanksOfTest();

}  // namespace perigee::test
