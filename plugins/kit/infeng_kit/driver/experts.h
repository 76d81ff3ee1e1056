// Cases of the ops of a mixture of experts: route and combine. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <numeric>

#include "epilogues.h"

struct RouteState : State<infeng_route_args> {
  int64_t rows = 0, experts = 0, top_k = 0, k = 0;
  Bytes logits, x, copies, chosen, weights, places, begin;
  Activation in, out;
  infeng_activation in_view{}, out_view{};
  void make_outputs() {
    const int64_t count = rows * top_k * 4;
    for (Bytes* each : {&chosen, &weights, &places}) *each = Bytes(count, 0x33);
    begin = Bytes((experts + 1) * 4, 0x33);
    copies = Bytes(x.size() * top_k, 0x33);
    if (in.rows) out = Activation(rows * top_k, k);
  }
  infeng_args& args() {
    in_view = in.view();
    out_view = out.view();
    if (x.size()) {
      in_view.x = matrix(x, INFENG_F32, rows, k, k);
      out_view.x = matrix(copies, INFENG_F32, rows * top_k, k, k);
    }
    if (!in.rows) in_view.q.data = out_view.q.data = nullptr;
    a.logits = matrix(logits, INFENG_F32, rows, experts, experts);
    a.in = &in_view;
    a.out = &out_view;
    a.experts = chosen.as<int32_t>();
    a.weights = weights.as<float>();
    a.places = places.as<int32_t>();
    a.begin = begin.as<int32_t>();
    a.top_k = int32_t(top_k);
    return finish(rows);
  }
  bool same(const RouteState& o) const {
    return chosen == o.chosen && weights == o.weights && places == o.places && begin == o.begin && copies == o.copies &&
           out == o.out;
  }
  bool intact() const {
    return chosen.intact() && weights.intact() && places.intact() && begin.intact() && copies.intact() && out.intact();
  }
};

inline void check_route(Checker& c) {
  const std::vector<std::pair<int64_t, int64_t>> sizes = {{1, 1}, {8, 2}, {60, 4}, {64, 64}, {130, 8}};
  for (const auto& [experts, top_k] : sizes)
    for (const int64_t rows : {1, 3, 70})
      for (const int64_t k : {64, 172})
        for (const bool integer : {false, true})
          for (const uint32_t share : {uint32_t(INFENG_SHARE_ALL), uint32_t(INFENG_SHARE_CHOSEN)}) {
            infeng_problem p = problem_of(c.kernel, rows);
            p.act_format = integer ? INFENG_ACT_INT8_G64 : INFENG_ACT_F32;
            p.k = k;
            p.experts = int32_t(experts);
            p.top_k = int32_t(top_k);
            if (!c.wants(p)) continue;
            RouteState s;
            s.rows = rows, s.experts = experts, s.top_k = top_k, s.k = k;
            s.logits = floats(rows * experts, 4.0f);
            for (int64_t i = 0; i < rows * experts; ++i)  // equal logits, and shares of 0
              if (chance(0.3)) s.logits.as<float>()[i] = chance(0.5) ? 2.0f : -200.0f;
            if (integer) {
              s.in = Activation(rows, k);
              s.in.randomize();
            } else {
              s.x = floats(rows * k);
            }
            s.a.share = share;
            s.make_outputs();
            c.compare(p, s, text("%ld of %ld experts rows %ld k %ld share %ld", top_k, experts, rows, k, share));
          }
}

struct CombineState : State<infeng_combine_args> {
  int64_t rows = 0, top_k = 0, n = 0;
  Bytes x, weights, shared, gate, out;
  std::vector<int32_t> places;
  infeng_args& args() {
    a.x = matrix(x, INFENG_F32, rows * top_k, n, n);
    a.out = matrix(out, INFENG_F32, rows, n, n);
    a.weights = weights.as<float>();
    a.places = places.data();
    if (shared.size()) a.shared = matrix(shared, INFENG_F32, rows, n, n);
    if (gate.size()) a.gate = matrix(gate, INFENG_F32, rows, 1, 16);
    a.top_k = int32_t(top_k);
    return finish(rows);
  }
  bool same(const CombineState& o) const { return out == o.out && list.act == o.list.act; }
  bool intact() const { return out.intact() && list.act.intact(); }
};

inline void check_combine(Checker& c) {
  for (const int64_t n : {8, 64, 172, 576})
    for (const int64_t rows : {1, 5, 70})
      for (const int64_t top_k : {1, 8})
        for (const auto& kinds : lists()) {
          if (c.skips()) continue;
          infeng_problem p = problem_of(c.kernel, rows);
          p.n = p.k = n;
          p.top_k = int32_t(top_k);
          CombineState s;
          s.list = List(kinds, rows, n);
          ask(p, kinds, s.list.rounding(), s.list.segments.has_tails());
          if (!serves(c.kernel, p)) continue;
          s.rows = rows, s.top_k = top_k, s.n = n;
          s.x = floats(rows * top_k * n);
          s.weights = floats(rows * top_k);
          s.places.resize(size_t(rows * top_k));
          std::iota(s.places.begin(), s.places.end(), 0);
          std::shuffle(s.places.begin(), s.places.end(), rng);
          if (chance(0.7)) s.shared = floats(rows * n);
          if (s.shared.size() && chance(0.6)) s.gate = floats(rows * 16, 4.0f);
          s.out = Bytes(rows * n * 4, 0x33);
          c.compare(p, s, text("n %ld rows %ld top_k %ld epilogues %ld", n, rows, top_k, mask_of(kinds)));
        }
}
