// The plot of a sweep: hit rate against capacity, a line a tenant, as one SVG file that a browser opens.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvartal::ctl {

struct HitRatePlot {
  std::string title, subtitle;
  std::string x_label;                   // its labels have their units
  std::vector<uint64_t> capacity_bytes;  // rising
  struct Line {
    std::string name;
    std::vector<double> hit_rate;  // 0..1, one a capacity
    bool total = false;            // drawn dashed and black: the sum of the others
  };
  std::vector<Line> lines;
};

// REQUIRES: at least two capacities and one line. The x axis is logarithmic where capacities span more than a factor
// of 8.
std::string RenderSvg(const HitRatePlot& plot);

}  // namespace kvartal::ctl
