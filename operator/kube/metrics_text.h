// The numbers of this runtime as Prometheus text, under the names every Kubernetes controller has, so that ready-made
// dashboards show this one too. Pure.
#pragma once

#include <string>

#include "operator/kube/api_client.h"
#include "operator/kube/controller.h"

namespace kvartal::kube {

struct RuntimeStats {
  std::string controller;  // label of its queue and reconciles
  ControllerStats work;
  size_t at_once = 0;
  std::string host;  // of the API server
  ApiClientStats calls;
  std::string lease;
  bool leading = false;
};

std::string MetricsText(const RuntimeStats& stats);

}  // namespace kvartal::kube
