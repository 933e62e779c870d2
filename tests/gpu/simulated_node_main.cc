// The main of tests on simulated GPUs: one node of them for all cases.
#include <gtest/gtest.h>

#include "tests/gpu/gpu_fixture.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::AddGlobalTestEnvironment(new kvartal::device::SimulatedNode);
  return RUN_ALL_TESTS();
}
