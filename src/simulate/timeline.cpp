#include "simulate/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

namespace fa3::simulator {
namespace {

using attention::Mark;
using attention::Stamp;

/// The tracks, in the order of their first event.
std::vector<std::string> tracks_of(const std::vector<Event>& events) {
  std::vector<std::string> tracks;
  for (const Event& event : events)
    if (std::find(tracks.begin(), tracks.end(), event.track) == tracks.end()) tracks.push_back(event.track);
  std::sort(tracks.begin(), tracks.end());
  return tracks;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

const char* colour(const Event& event) {
  if (contains(event.track, "waits")) return "#c9c9c9";
  if (contains(event.name, "softmax")) return "#e0863a";
  if (contains(event.name, "convert")) return "#e8b98b";
  if (contains(event.name, "QK")) return "#3b76b5";
  if (contains(event.name, "PV")) return "#6fb06a";
  return "#9a86b8";
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '&')
      result += "&amp;";
    else
      result += c;
  }
  return result;
}

/// "QK warpgroup 1 block 3" -> "S3", "PV warpgroup 2 block 3" -> "PV3'": the second and third warpgroup get a prime
/// each.
std::string short_name(const Event& event) {
  const auto block = event.name.rfind(" block ");
  std::string label = contains(event.name, "QK") ? "S" : "PV";
  if (block != std::string::npos) label += event.name.substr(block + 7);
  const auto warpgroup = event.name.find("warpgroup ");
  if (warpgroup != std::string::npos) label += std::string(std::size_t(event.name[warpgroup + 10] - '1'), '\'');
  return label;
}

}  // namespace

std::vector<Event> merged(std::vector<Event> events) {
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.track != b.track ? a.track < b.track : a.begin < b.begin;
  });
  std::vector<Event> result;
  for (const Event& event : events) {
    if (!result.empty() && result.back().track == event.track && result.back().name == event.name &&
        event.begin <= result.back().end + 0.5)
      result.back().end = std::max(result.back().end, event.end);
    else
      result.push_back(event);
  }
  return result;
}

std::vector<Event> events_of_stamps(const std::vector<Stamp>& stamps, int roles) {
  std::uint64_t first = ~std::uint64_t(0);
  for (const Stamp& stamp : stamps)
    if (stamp.clock != 0) first = std::min(first, stamp.clock);
  std::vector<Event> events;
  for (int role = 0; role < roles; ++role) {
    const std::string track = role == 0 ? "producer" : fmt::format("warpgroup {}", role);
    std::map<Mark, double> at;
    for (int i = 0; i < attention::stamps_per_role; ++i) {
      const Stamp& stamp = stamps[std::size_t(role * attention::stamps_per_role + i)];
      if (stamp.clock == 0) break;
      const double time = double(stamp.clock - first);
      at[stamp.mark] = time;
      const auto from = [&](const std::string& where, const std::string& name, Mark begin) {
        if (at.contains(begin)) events.push_back({where, name, at[begin], time});
      };
      const std::string block = fmt::format(" block {}", stamp.block);
      switch (stamp.mark) {
        case Mark::load_k: events.push_back({track, "K" + block, time, time + 32}); break;
        case Mark::load_v: events.push_back({track, "V" + block, time, time + 32}); break;
        case Mark::turn_taken: from(track + " waits", "turn", Mark::turn_wanted); break;
        case Mark::s_ready:
          from(track + " GEMMs: S", fmt::format("QK warpgroup {}{}", role, block), Mark::turn_taken);
          break;
        case Mark::softmax_done: from(track, "softmax" + block, Mark::softmax_begun); break;
        case Mark::o_ready: from(track + " GEMMs: PV", fmt::format("PV warpgroup {}", role), Mark::s_issued); break;
        default: break;
      }
    }
  }
  return merged(std::move(events));
}

std::string chrome_trace(const std::vector<Event>& events) {
  nlohmann::json trace = nlohmann::json::array();
  const std::vector<std::string> tracks = tracks_of(events);
  for (std::size_t i = 0; i < tracks.size(); ++i)
    trace.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", i}, {"args", {{"name", tracks[i]}}}});
  for (const Event& event : events) {
    const auto track = std::find(tracks.begin(), tracks.end(), event.track) - tracks.begin();
    trace.push_back({{"name", event.name},
                     {"ph", "X"},
                     {"pid", 0},
                     {"tid", track},
                     {"ts", event.begin},
                     {"dur", event.end - event.begin}});
  }
  return nlohmann::json{{"traceEvents", trace}, {"displayTimeUnit", "ns"}}.dump(1) + "\n";
}

std::string svg(const std::vector<Event>& events, double begin, double end) {
  constexpr double width = 1400, left = 190, row = 26, top = 34;
  const std::vector<std::string> tracks = tracks_of(events);
  const double scale = (width - left - 10) / (end - begin);
  std::string picture = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, top + row * double(tracks.size()) + 14);
  // Steps of 1, 2 or 5 times a power of ten, about ten of them.
  const double power = std::pow(10.0, std::floor(std::log10((end - begin) / 10)));
  const double tenth = (end - begin) / 10 / power;
  const double step = power * (tenth <= 1 ? 1 : tenth <= 2 ? 2 : tenth <= 5 ? 5 : 10);
  picture += "<text x=\"8\" y=\"16\" fill=\"#555\">cycles</text>\n";
  for (double tick = std::ceil(begin / step) * step; tick <= end; tick += step)
    picture += fmt::format(
        "<text x=\"{0:.1f}\" y=\"16\" text-anchor=\"middle\" fill=\"#555\">{1:.0f}</text>"
        "<line x1=\"{0:.1f}\" y1=\"20\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#eee\"/>\n",
        left + (tick - begin) * scale, tick, top + row * double(tracks.size()));
  for (std::size_t i = 0; i < tracks.size(); ++i)
    picture += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left - 8,
                           top + row * double(i) + 16, escaped(tracks[i]));
  for (const Event& event : events) {
    if (event.end <= begin || event.begin >= end) continue;
    const auto track = double(std::find(tracks.begin(), tracks.end(), event.track) - tracks.begin());
    const double x0 = left + (std::max(event.begin, begin) - begin) * scale,
                 x1 = left + (std::min(event.end, end) - begin) * scale;
    picture += fmt::format(
        "<g><title>{0}, {1:.0f} to {2:.0f}</title><rect x=\"{3:.1f}\" y=\"{4:.1f}\" width=\"{5:.1f}\" "
        "height=\"{6:.1f}\" fill=\"{7}\" "
        "stroke=\"white\"/>",
        escaped(event.name), event.begin, event.end, x0, top + row * track, std::max(x1 - x0, 0.5), row - 4,
        colour(event));
    const std::string label = contains(event.name, "QK") || contains(event.name, "PV") ? short_name(event) : event.name;
    if (x1 - x0 > 7.0 * double(label.size()))
      picture += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>", x0 + 4, top + row * track + 15,
                             contains(event.track, "waits") ? "#444" : "white", escaped(label));
    picture += "</g>\n";
  }
  return picture + "</svg>\n";
}

std::string text_drawing(const std::vector<Event>& events, double begin, double end, double cycles) {
  const auto columns = std::size_t(std::ceil((end - begin) / cycles));
  std::map<std::string, std::string> lines;
  const auto draw = [&](const std::string& track, const Event& event, std::string label) {
    std::string& line = lines.try_emplace(track, std::string(columns, ' ')).first->second;
    if (event.end <= begin || event.begin >= end) return;
    const auto from = std::size_t(std::max(0.0, std::round((event.begin - begin) / cycles)));
    const auto to = std::min(columns, std::size_t(std::round((event.end - begin) / cycles)));
    if (to < from + 3) return;  // no room for a box
    label = "[" + label;
    label.resize(to - from, ' ');
    label.back() = ']';
    line.replace(from, to - from, label);
  };
  for (const Event& event : events) {
    if (event.track == "tensor core") draw("tensor core", event, short_name(event));
    if (contains(event.track, "warpgroup") && !contains(event.track, "waits"))
      draw(event.track, event, contains(event.name, "softmax") ? "softmax" : "");
  }
  std::string text;
  for (auto& [track, line] : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += fmt::format("//   {:<12} {}\n", track, line);
  }
  return text;
}

}  // namespace fa3::simulator
