// The numbers of this runtime as Prometheus text, under the names every Kubernetes controller has, so that ready-made
// dashboards show this one too. Pure.
#pragma once

#include <string>
#include <vector>

#include "operator/kube/api_client.h"
#include "operator/kube/controller.h"

namespace kvartal::kube {

struct ControllerReport {
  std::string name;  // label of its queue and reconciles
  ControllerStats work;
  size_t at_once = 0;
};

struct RuntimeStats {
  std::vector<ControllerReport> controllers;
  std::string host;  // of the API server
  ApiClientStats calls;
  std::string lease;
  bool leading = false;
};

std::string MetricsText(const RuntimeStats& stats);

}  // namespace kvartal::kube
