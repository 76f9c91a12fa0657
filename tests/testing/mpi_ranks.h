#pragma once

#include <chrono>

#include "comm/process_ranks.h"

namespace perigee::test {

// Generous: tests of the watchdog itself have their own clocks or their own programs.
inline constexpr std::chrono::milliseconds kTestWatchdog = std::chrono::seconds(60);

// This process among those of the test, in programs linked with testing/mpi_main.cc.
comm::ProcessRanks& ProcessRanksOfTest();

}  // namespace perigee::test
