// Halo and states of segments over ranks, against the rows and the recurrence of the whole sequence.
#include "parallel/segment_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "kernels/kda/kda.h"
#include "kernels/kda/kda_summary.h"
#include "parallel/cp/cp_strategy.h"
#include "parallel/halo_exchange.h"
#include "parallel/rank_fixture.h"
#include "parallel/spans.h"
#include "ref/kda_ref.h"
#include "testing/multi_rank.h"
#include "testing/random.h"
#include "testing/tolerances.h"

namespace perigee::parallel {
namespace {

using test::MakeSpans;
using test::RankFixture;
using test::SpanShape;

const std::vector<CpStrategy> kStrategies = {Zigzag, Contiguous};

// Short and long spans, prefixes shorter than the history too.
const std::vector<std::vector<SpanShape>> kBatches = {
    {{0, 1}}, {{0, 19}}, {{5, 19}}, {{1, 8}, {0, 2}, {2, 9}}, {{64, 16}, {0, 33}, {3, 1}, {0, 8}},
};

class Halo {
 public:
  static constexpr int64_t kHistory = 3, kParts = 3, kWidth = 16, kState = 5;

  // Channel c of part p of the token `position` of a sequence; zero before its start.
  static float Value(int32_t seq, int64_t position, int64_t part, int64_t c) {
    return position < 0 ? 0.0f : static_cast<float>(1 + seq * 1000000 + position * 1000 + part * 100 + c);
  }
  static float State(int32_t seq, int64_t i) { return static_cast<float>(-1 - seq * 1000 - i); }

  // Runs the exchange on `ranks` ranks and checks every tail that anybody may ask for.
  static void Check(int tp, int ranks, const std::vector<SpanShape>& shapes, CpStrategy strategy) {
    const auto spans = MakeSpans(shapes);
    test::RunRanks("thread", tp, [&](comm::Communicator& world) {
      const RankFixture rank(world, ranks);
      const ParallelContext& p = rank.parallel();
      const SegmentPlan plan = MakeSegmentPlan(spans, strategy(spans, ranks), {}, p.cp_rank);
      const int64_t share = kWidth / ranks;
      std::vector<std::vector<float>> conv(spans.size()), state(spans.size());
      std::vector<EntryShare> entries;
      for (size_t s = 0; s < spans.size(); ++s) {
        const auto seq = static_cast<int32_t>(s);
        for (int64_t m = 0; m < kHistory * kParts * share; ++m) {
          const int64_t position = spans[s].prefix() - kHistory + m / (kParts * share);
          conv[s].push_back(Value(seq, position, m / share % kParts, p.cp_rank * share + m % share));
        }
        for (int64_t i = 0; i < kState; ++i) state[s].push_back(State(seq, p.cp_rank * kState + i));
        entries.push_back({conv[s].data(), state[s].data()});
      }
      int64_t local = 0;
      for (const size_t i : plan.ranks[static_cast<size_t>(p.cp_rank)]) local += plan.pieces[i].len;
      const MatrixF rows = rank.Zeros(local, kParts * kWidth).As<float>();
      for (const size_t i : plan.ranks[static_cast<size_t>(p.cp_rank)]) {
        const Piece& piece = plan.pieces[i];
        for (int64_t r = 0; r < piece.len; ++r) {
          FillRow(piece.span, spans[static_cast<size_t>(piece.span)].prefix() + piece.begin + r,
                  rows.Row(piece.local_row + r));
        }
      }
      const HaloShape shape{kHistory, kParts, kWidth, kState};
      const auto halo = HaloExchange::Run(p, plan, rank.context(), shape, rows, entries);
      ASSERT_TRUE(halo.ok()) << halo.status().message();
      EXPECT_EQ(rank.Sent().TotalElements(),
                static_cast<uint64_t>((ranks - 1) * HaloExchange::SentBy(plan, shape, p.cp_rank)));
      for (const Piece& piece : plan.pieces) {
        CheckTail(*halo, spans[static_cast<size_t>(piece.span)], piece.begin, p.cp_rank, ranks);
        CheckTail(*halo, spans[static_cast<size_t>(piece.span)], piece.end(), p.cp_rank, ranks);
      }
      for (size_t s = 0; s < spans.size(); ++s) {
        std::vector<float> entry(static_cast<size_t>(ranks * kState)), expected(entry.size());
        halo->EntryState(static_cast<int32_t>(s), entry.data());
        if (spans[s].prefix() > 0) {
          for (size_t i = 0; i < expected.size(); ++i) {
            expected[i] = State(static_cast<int32_t>(s), static_cast<int64_t>(i));
          }
        }
        EXPECT_EQ(entry, expected);
      }
    });
  }

 private:
  static void FillRow(int32_t seq, int64_t position, float* out) {
    for (int64_t c = 0; c < kParts * kWidth; ++c) out[c] = Value(seq, position, c / kWidth, c % kWidth);
  }

  static void CheckTail(const HaloExchange& halo, const batch::SeqSpan& span, int64_t row, int cp_rank,
                        int ranks) {
    const int64_t share = kWidth / ranks;
    std::vector<float> tail(kHistory * kParts * kWidth), expected = tail;
    std::vector<float> own(static_cast<size_t>(kHistory * kParts * share)), own_expected;
    for (int64_t m = 0; m < kHistory; ++m) {
      FillRow(span.seq, span.prefix() + row - kHistory + m, &expected[m * kParts * kWidth]);
      for (int64_t c = 0; c < kParts * share; ++c) {
        own_expected.push_back(
            Value(span.seq, span.prefix() + row - kHistory + m, c / share, cp_rank * share + c % share));
      }
    }
    halo.TailBefore(span.seq, row, tail.data());
    EXPECT_EQ(tail, expected) << "span " << span.seq << " before row " << row;
    halo.ShareOfTailBefore(span.seq, row, own.data());
    EXPECT_EQ(own, own_expected) << "span " << span.seq << " before row " << row;
  }
};

TEST(HaloExchange, RowsFromHoweverManySegmentsBack) {
  for (const int ranks : {2, 4, 8}) {
    for (const auto& shapes : kBatches) {
      for (const CpStrategy strategy : kStrategies) Halo::Check(ranks, ranks, shapes, strategy);
    }
  }
}

TEST(HaloExchange, GroupsOfSomeRanks) {
  for (const auto& shapes : kBatches) Halo::Check(4, 2, shapes, Zigzag);
}

// Heads of a whole sequence, and what the ranks make of it.
class Scan {
 public:
  // No two dimensions alike; 8 heads for up to 8 shares.
  static constexpr ref::KdaShape kShape{8, 12, 20};
  static constexpr int64_t kKeys = 8 * 12, kValues = 8 * 20, kState = 8 * 12 * 20;

  Scan(const std::vector<SpanShape>& shapes, test::GateKind gates, uint64_t seed)
      : spans_(MakeSpans(shapes)) {
    test::Random random(seed);
    for (const SpanShape& s : shapes) {
      k_.push_back(random.Normals(s.len * kKeys));
      v_.push_back(random.Normals(s.len * kValues));
      g_.push_back(test::RandomGates(random, s.len * kKeys, gates));
      beta_.push_back(random.Uniforms(s.len * 8, 0.01, 0.99));
      entry_.push_back(s.prefix > 0 ? random.Normals(kState, 0.5) : std::vector<float>(kState, 0.0f));
    }
  }
  std::vector<float>& gates(size_t span) { return g_[span]; }

  // The state after `rows` rows of a span, one token after another in double.
  std::vector<double> Expected(size_t span, int64_t rows) const {
    const auto first = [&](const std::vector<float>& x, int64_t width) {
      return std::vector<double>(x.begin(), x.begin() + rows * width);
    };
    std::vector<double> state = test::ToDouble(entry_[span]);
    ref::Kda(kShape, first(k_[span], kKeys), first(k_[span], kKeys), first(v_[span], kValues),
             first(g_[span], kKeys), first(beta_[span], 8), state);
    return state;
  }

  // Every rank folds to the end of every piece; all must hold equal bits, near the recurrence.
  void Check(int ranks, CpStrategy strategy, const std::vector<batch::StateSnapshot>& cuts) const {
    std::mutex mutex;
    std::vector<std::vector<std::vector<float>>> states(static_cast<size_t>(ranks));
    test::RunRanks("thread", ranks, [&](comm::Communicator& world) {
      const RankFixture rank(world, ranks);
      const SegmentPlan plan =
          MakeSegmentPlan(spans_, strategy(spans_, ranks), cuts, rank.parallel().cp_rank);
      std::vector<std::vector<float>> folded = Run(rank, plan);
      const std::lock_guard lock(mutex);
      states[static_cast<size_t>(plan.rank)] = std::move(folded);
    });
    const SegmentPlan plan = MakeSegmentPlan(spans_, strategy(spans_, ranks), cuts, 0);
    for (size_t i = 0; i < plan.pieces.size(); ++i) {
      const Piece& piece = plan.pieces[i];
      SCOPED_TRACE(::testing::Message()
                   << ranks << " ranks, span " << piece.span << " to row " << piece.end());
      for (const auto& of_rank : states) EXPECT_TRUE(test::SameBits(of_rank[i], states[0][i]));
      EXPECT_TRUE(test::Near(states[0][i], Expected(static_cast<size_t>(piece.span), piece.end()),
                             test::kKdaTolerance));
    }
  }

 private:
  std::vector<std::vector<float>> Run(const RankFixture& rank, const SegmentPlan& plan) const {
    const ScanShape shape{kShape.heads, kShape.key_dim, kShape.value_dim};
    SegmentScan scan(rank.parallel(), plan, rank.context(), shape);
    for (const SegmentScan::Own& own : scan.own()) Fill(rank, own);
    const Status status = scan.Gather();
    EXPECT_TRUE(status.ok()) << status.message();
    const auto others = static_cast<int64_t>(plan.ranks.size()) - 1;
    EXPECT_EQ(rank.Sent().TotalElements(),
              static_cast<uint64_t>(others * SegmentScan::SentBy(plan, shape, plan.rank)));
    std::vector<std::vector<float>> states(plan.pieces.size(), std::vector<float>(kState));
    std::vector<SegmentScan::Wish> wishes;
    // Wishes may come in any order, and for some heads.
    for (size_t i = plan.pieces.size(); i-- > 0;) {
      const Piece& piece = plan.pieces[i];
      wishes.push_back({piece.span, piece.end(), 3, 8, states[i].data() + 3 * kState / 8});
      wishes.push_back({piece.span, piece.end(), 0, 3, states[i].data()});
    }
    scan.Fold(std::move(wishes));
    return states;
  }

  void Fill(const RankFixture& rank, const SegmentScan::Own& own) const {
    const auto s = static_cast<size_t>(own.piece.span);
    const auto rows = [&](const std::vector<float>& x, int64_t width) {
      return ConstMatrixF(x.data() + own.piece.begin * width, own.piece.len, width);
    };
    const ConstMatrixF k = rows(k_[s], kKeys), v = rows(v_[s], kValues), g = rows(g_[s], kKeys);
    const ConstMatrixF beta = rows(beta_[s], 8);
    if (own.transition != nullptr) {
      const kernels::KdaSummarySegment segment{0, own.piece.len, own.transition, own.state};
      KdaSummary(rank.context(),
                 {kShape.heads, kShape.key_dim, kShape.value_dim, k, v, g, beta, {&segment, 1}});
      return;
    }
    std::copy(entry_[s].begin(), entry_[s].end(), own.state);
    const std::vector<perigee::Segment> segment(1, perigee::Segment{.q_len = own.piece.len});
    KdaPrefill(rank.context(), {.num_heads = kShape.heads,
                                .key_dim = kShape.key_dim,
                                .value_dim = kShape.value_dim,
                                .q = k,
                                .k = k,
                                .v = v,
                                .g = g,
                                .decay = {},
                                .beta = beta,
                                .segments = segment,
                                .states = {.recurrent = own.state},
                                .out = rank.Zeros(own.piece.len, kValues)});
  }

  std::vector<batch::SeqSpan> spans_;
  std::vector<std::vector<float>> k_, v_, g_, beta_, entry_;  // by span
};

TEST(SegmentScan, StatesOfEveryPieceAgainstTheRecurrence) {
  for (const test::GateKind gates : {test::GateKind::kModel, test::GateKind::kSlow, test::GateKind::kFast,
                                     test::GateKind::kZero, test::GateKind::kMixed}) {
    const Scan scan({{64, 130}, {0, 1}, {3, 63}, {0, 65}, {7, 5}}, gates, 51);
    for (const int ranks : {2, 4, 8}) {
      for (const CpStrategy strategy : kStrategies) scan.Check(ranks, strategy, {});
    }
  }
}

TEST(SegmentScan, GatesThatForgetEverything) {
  Scan scan({{64, 130}, {0, 65}}, test::GateKind::kModel, 52);
  for (size_t span : {0, 1}) std::fill(scan.gates(span).begin(), scan.gates(span).end(), -2000.0f);
  for (const CpStrategy strategy : kStrategies) scan.Check(4, strategy, {});
}

TEST(SegmentScan, CutsAreBoundariesOfTheFold) {
  const Scan scan({{64, 300}, {0, 70}}, test::GateKind::kMixed, 53);
  const std::vector<batch::StateSnapshot> cuts = {{0, 128, 0}, {0, 192, 0}, {0, 320, 0}, {1, 64, 0}};
  for (const int ranks : {2, 4}) {
    for (const CpStrategy strategy : kStrategies) scan.Check(ranks, strategy, cuts);
  }
}

// What a rank gives to each other one: a state for a first piece, M and B for every other.
TEST(SegmentScan, WhatIsSent) {
  const auto spans = MakeSpans({{0, 64}, {100, 3}});
  const ScanShape shape{8, 12, 20};
  const int64_t state = 8 * 12 * 20, summary = 8 * 12 * (12 + 20);
  const SegmentPlan zigzag = MakeSegmentPlan(spans, Zigzag(spans, 4), {}, 0);
  // The short span goes to rank 3, which sees the fewest pairs.
  const int owner = zigzag.OfSpan(1)[0].rank;
  for (int rank = 0; rank < 4; ++rank) {
    const int64_t expected = (rank == 0 ? state + summary : 2 * summary) + (rank == owner ? state : 0);
    EXPECT_EQ(SegmentScan::SentBy(zigzag, shape, rank), expected);
  }
  const SegmentPlan runs = MakeSegmentPlan({&spans[0], 1}, Contiguous({&spans[0], 1}, 4), {}, 0);
  EXPECT_EQ(SegmentScan::SentBy(runs, shape, 0), state);
  EXPECT_EQ(SegmentScan::SentBy(runs, shape, 3), summary);
}

}  // namespace
}  // namespace perigee::parallel
