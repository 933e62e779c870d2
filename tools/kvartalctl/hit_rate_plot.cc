#include "tools/kvartalctl/hit_rate_plot.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "daemon/base/check.h"
#include "tools/kvartalctl/output.h"

namespace kvartal::ctl {
namespace {

constexpr double kWidth = 960, kLeft = 80, kTop = 76, kRight = 690, kBottom = 440;
constexpr double kLegendX = kRight + 24, kLegendRow = 20;
constexpr double kLogFrom = 8;   // span of capacities above which the axis is logarithmic
constexpr double kTickGap = 56;  // pixels between labels of the x axis
// Okabe and Ito's, which people with any colour vision can tell apart; a second round is dashed.
constexpr const char* kColours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"};

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::string Text(double x, double y, const char* anchor, int size, const std::string& text, const char* more = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\"%s>%s</text>\n", x, y, anchor,
                         size, more, Escaped(text));
}

std::string Stroke(double x1, double y1, double x2, double y2, const char* colour) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1, x2, y2,
                         colour);
}

// Where values are on the page.
class Scale {
 public:
  explicit Scale(const HitRatePlot& plot)
      : low_(static_cast<double>(plot.capacity_bytes.front())), high_(static_cast<double>(plot.capacity_bytes.back())) {
    double best = 0;
    for (const HitRatePlot::Line& line : plot.lines) {
      best = std::max(best, *std::max_element(line.hit_rate.begin(), line.hit_rate.end()));
    }
    // The next full tenth above the best, so that a difference of a few percent can be seen.
    top_ = std::clamp(std::ceil(best * 10 + 0.2) / 10, 0.1, 1.0);
  }
  bool logarithmic() const { return high_ / low_ > kLogFrom; }
  double top() const { return top_; }
  double X(uint64_t bytes) const {
    const auto value = static_cast<double>(bytes);
    const double part =
        logarithmic() ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
    return kLeft + part * (kRight - kLeft);
  }
  double Y(double rate) const { return kBottom - rate / top_ * (kBottom - kTop); }

 private:
  const double low_, high_;
  double top_ = 1;
};

std::string Axes(const HitRatePlot& plot, const Scale& scale) {
  std::string out;
  const int steps = std::max(2, static_cast<int>(std::lround(scale.top() * 10)));
  for (int i = 0; i <= steps; ++i) {
    const double rate = scale.top() * i / steps;
    absl::StrAppend(&out, Stroke(kLeft, scale.Y(rate), kRight, scale.Y(rate), i == 0 ? "#333" : "#ddd"));
    absl::StrAppend(&out, Text(kLeft - 8, scale.Y(rate) + 4, "end", 12, absl::StrFormat("%.0f%%", rate * 100)));
  }
  absl::StrAppend(&out, Stroke(kLeft, kTop, kLeft, kBottom, "#333"));
  double labelled = -kTickGap;
  for (const uint64_t bytes : plot.capacity_bytes) {
    const double x = scale.X(bytes);
    absl::StrAppend(&out, Stroke(x, kBottom, x, kBottom + 5, "#333"));
    if (x - labelled < kTickGap) continue;
    labelled = x;
    absl::StrAppend(&out, Text(x, kBottom + 20, "middle", 12, HumanBytes(bytes)));
  }
  const std::string scale_name = scale.logarithmic() ? " (logarithmic)" : "";
  absl::StrAppend(&out, Text((kLeft + kRight) / 2, kBottom + 46, "middle", 14, plot.x_label + scale_name));
  const double middle = (kTop + kBottom) / 2;
  const std::string turned = absl::StrFormat(" transform=\"rotate(-90 24 %.1f)\"", middle);
  absl::StrAppend(&out, Text(24, middle, "middle", 14, "token hit rate (% of prompt tokens)", turned.c_str()));
  return out;
}

std::string LineAndLegend(const HitRatePlot& plot, const Scale& scale, size_t number) {
  const HitRatePlot::Line& line = plot.lines[number];
  constexpr size_t kColourCount = std::size(kColours);
  const char* const colour = line.total ? "#111" : kColours[number % kColourCount];
  const bool dashed = line.total || number >= kColourCount;
  const std::string style = absl::StrCat("stroke=\"", colour, "\" stroke-width=\"2\" fill=\"none\"",
                                         dashed ? " stroke-dasharray=\"6 4\"" : "");
  std::string points, marks;
  for (size_t i = 0; i < line.hit_rate.size(); ++i) {
    const double x = scale.X(plot.capacity_bytes[i]), y = scale.Y(line.hit_rate[i]);
    absl::StrAppend(&points, i == 0 ? "" : " ", absl::StrFormat("%.1f,%.1f", x, y));
    absl::StrAppend(
        &marks,
        absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"><title>%s: %.1f%% at "
                        "%s</title></circle>\n",
                        x, y, colour, Escaped(line.name), line.hit_rate[i] * 100, HumanBytes(plot.capacity_bytes[i])));
  }
  const double y = kTop + 8 + kLegendRow * static_cast<double>(number);
  return absl::StrCat("<polyline ", style, " points=\"", points, "\"/>\n", marks,
                      absl::StrFormat("<path d=\"M%.1f %.1fh26\" %s/>\n", kLegendX, y - 4, style),
                      Text(kLegendX + 34, y, "start", 13, line.name));
}

}  // namespace

std::string RenderSvg(const HitRatePlot& plot) {
  KV_CHECK(plot.capacity_bytes.size() > 1 && !plot.lines.empty());
  const Scale scale(plot);
  const double height = std::max(kBottom + 70, kTop + 20 + kLegendRow * static_cast<double>(plot.lines.size()));
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" fill=\"#111\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
      kWidth, height, kWidth, height);
  absl::StrAppend(&out, Text(kLeft, 30, "start", 18, plot.title, " font-weight=\"bold\""),
                  Text(kLeft, 52, "start", 13, plot.subtitle), Axes(plot, scale));
  for (size_t i = 0; i < plot.lines.size(); ++i) absl::StrAppend(&out, LineAndLegend(plot, scale, i));
  absl::StrAppend(&out, "</svg>\n");
  return out;
}

}  // namespace kvartal::ctl
