#include "cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>
#include <vector>

namespace perigee::cli {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

StatusOr<Command> Parse(const std::vector<const char*>& args) {
  return ParseCommandLine(args);
}

template <typename Flags>
Flags Parsed(const std::vector<const char*>& args) {
  StatusOr<Command> command = Parse(args);
  if (!command.ok()) {
    ADD_FAILURE() << command.status().message();
    return {};
  }
  if (!std::holds_alternative<Flags>(*command)) {
    ADD_FAILURE() << "another command";
    return {};
  }
  return std::get<Flags>(*command);
}

TEST(Flags, ServeDefaults) {
  const auto flags = Parsed<ServeFlags>({"serve"});
  EXPECT_EQ(flags.host, "127.0.0.1");
  EXPECT_EQ(flags.port, 30000);
  EXPECT_EQ(flags.model.engine.model_path, "");
  EXPECT_EQ(flags.model.engine.threads, 0);
  EXPECT_EQ(flags.model.log_level, LogLevel::kInfo);
  EXPECT_FALSE(flags.model.strict_template);
}

TEST(Flags, BenchOfflineTakesLists) {
  const auto flags =
      Parsed<BenchOfflineFlags>({"bench", "offline", "--prompts", "512,2048", "--batches=1,8", "--depths",
                                 "0", "--load-format", "dummy", "--shape", "kimi-linear-48b"});
  EXPECT_EQ(flags.prompts, (std::vector<int64_t>{512, 2048}));
  EXPECT_EQ(flags.batches, (std::vector<int64_t>{1, 8}));
  EXPECT_EQ(flags.depths, (std::vector<int64_t>{0}));
  EXPECT_EQ(flags.repeats, 5);
  EXPECT_TRUE(flags.model.engine.dummy_weights);
  EXPECT_EQ(flags.model.engine.shape, "kimi-linear-48b");
  EXPECT_THAT(flags.command, HasSubstr("perigee bench offline --prompts 512,2048"));
}

TEST(Flags, ServeTakesEveryFlagOfTheContract) {
  const auto flags = Parsed<ServeFlags>({"serve",
                                         "--model-path",
                                         "/m",
                                         "--host",
                                         "::1",
                                         "--port=0",
                                         "--served-model-name",
                                         "kimi",
                                         "--context-length",
                                         "4096",
                                         "--max-running-requests",
                                         "7",
                                         "--max-total-tokens",
                                         "9000",
                                         "--chunked-prefill-size",
                                         "128",
                                         "--max-prefill-tokens",
                                         "512",
                                         "--disable-radix-cache",
                                         "--state-snapshots",
                                         "9",
                                         "--state-checkpoint-interval",
                                         "256",
                                         "--threads",
                                         "3",
                                         "--seed",
                                         "11",
                                         "--log-level",
                                         "debug",
                                         "--trust-remote-code",
                                         "--tp",
                                         "1",
                                         "--strict-template"});
  EXPECT_EQ(flags.model.engine.model_path, "/m");
  EXPECT_EQ(flags.host, "::1");
  EXPECT_EQ(flags.port, 0);
  EXPECT_EQ(flags.served_model_name, "kimi");
  EXPECT_EQ(flags.model.engine.context_length, 4096);
  EXPECT_EQ(flags.model.engine.max_running_requests, 7);
  EXPECT_EQ(flags.model.engine.max_total_tokens, 9000);
  EXPECT_EQ(flags.model.engine.chunked_prefill_size, 128);
  EXPECT_EQ(flags.model.engine.max_prefill_tokens, 512);
  EXPECT_FALSE(flags.model.engine.prefix_cache);
  EXPECT_TRUE(Parsed<ServeFlags>({"serve"}).model.engine.prefix_cache);
  EXPECT_EQ(flags.model.engine.state_snapshots, 9);
  EXPECT_EQ(flags.model.engine.state_checkpoint_interval, 256);
  EXPECT_EQ(flags.model.engine.threads, 3);
  // Not 0, which would let the engine draw one.
  EXPECT_NE(flags.model.engine.seed, 0u);
  EXPECT_NE(flags.model.engine.seed, Parsed<ServeFlags>({"serve", "--seed", "0"}).model.engine.seed);
  EXPECT_NE(Parsed<ServeFlags>({"serve", "--seed", "0"}).model.engine.seed, 0u);
  EXPECT_EQ(Parsed<ServeFlags>({"serve"}).model.engine.seed, 0u);
  EXPECT_EQ(flags.model.log_level, LogLevel::kDebug);
  EXPECT_TRUE(flags.model.trust_remote_code);
  EXPECT_TRUE(flags.model.strict_template);
}

TEST(Flags, TensorParallelAliases) {
  for (const char* name : {"--tp", "--tp-size", "--tensor-parallel-size"}) {
    EXPECT_EQ(Parsed<ServeFlags>({"serve", name, "8"}).model.engine.parallel.tp, 8) << name;
  }
  EXPECT_EQ(Parsed<ServeFlags>({"serve"}).model.engine.parallel.tp, 1);
}

TEST(Flags, ServeGenerateAndScoreTakeTheFlagsOfRanks) {
  const std::vector<const char*> given = {"--tp",
                                          "4",
                                          "--attn-cp-size",
                                          "4",
                                          "--enable-prefill-cp",
                                          "--cp-strategy",
                                          "zigzag",
                                          "--cp-layout",
                                          "replicated",
                                          "--cp-kda-mode",
                                          "head",
                                          "--cp-attn-form",
                                          "materialised",
                                          "--ep-size",
                                          "4",
                                          "--deterministic",
                                          "on"};
  const auto with = [&](std::vector<const char*> args) {
    args.insert(args.end(), given.begin(), given.end());
    return args;
  };
  const std::vector<engine::ParallelOptions> parsed = {
      Parsed<ServeFlags>(with({"serve"})).model.engine.parallel,
      Parsed<GenerateFlags>(with({"generate", "--prompt", "a"})).model.engine.parallel,
      Parsed<ScoreFlags>(with({"score", "--input", "i"})).model.engine.parallel};
  for (const engine::ParallelOptions& p : parsed) {
    EXPECT_EQ(p.tp, 4);
    EXPECT_EQ(p.attn_cp, 4);
    EXPECT_TRUE(p.enable_prefill_cp);
    EXPECT_EQ(p.cp_strategy, "zigzag");
    EXPECT_EQ(p.cp_layout, "replicated");
    EXPECT_EQ(p.cp_kda_mode, "head");
    EXPECT_EQ(p.cp_attn_form, "materialised");
    EXPECT_EQ(p.ep, 4);
    EXPECT_EQ(p.deterministic, true);
  }
  EXPECT_EQ(Parsed<ServeFlags>({"serve", "--deterministic", "off"}).model.engine.parallel.deterministic,
            false);
  EXPECT_FALSE(Parsed<ServeFlags>({"serve"}).model.engine.parallel.deterministic.has_value());
}

TEST(Flags, GenerateKeepsThePromptToTheByte) {
  for (const char* text : {"-x", "[a,b]", "{\"a\": 1}", "--chat", "%%", "a\nb", " "}) {
    EXPECT_EQ(Parsed<GenerateFlags>({"generate", "--prompt", text}).prompt, text);
  }
  EXPECT_EQ(Parsed<GenerateFlags>({"generate", "--chat", ""}).chat, "");
}

TEST(Flags, GenerateOptions) {
  const auto flags =
      Parsed<GenerateFlags>({"generate", "--prompt", "a", "--max-tokens", "5", "--temperature", "0.5"});
  EXPECT_EQ(flags.max_tokens, 5);
  EXPECT_EQ(flags.temperature, 0.5);
  EXPECT_FALSE(Parsed<GenerateFlags>({"generate", "--prompt", "a"}).max_tokens.has_value());
}

TEST(Flags, ScoreAndInspect) {
  const auto score = Parsed<ScoreFlags>({"score", "--input", "in.json", "--output", "out.json"});
  EXPECT_EQ(score.input, "in.json");
  EXPECT_EQ(score.output, "out.json");
  EXPECT_EQ(Parsed<InspectFlags>({"inspect", "/m"}).folder, "/m");
  EXPECT_EQ(Parsed<InspectFlags>({"inspect", "--shape", "kimi-linear-48b"}).shape, "kimi-linear-48b");
}

TEST(Flags, PlanTakesAShapeAndRanks) {
  const auto flags =
      Parsed<PlanFlags>({"plan", "--shape", "kimi-linear-48b", "--tp", "4", "--attn-cp-size", "4",
                         "--enable-prefill-cp", "--cp-strategy", "zigzag", "--prompt", "131072", "--json"});
  EXPECT_EQ(flags.request.shape, "kimi-linear-48b");
  EXPECT_EQ(flags.request.model_path, "");
  EXPECT_EQ(flags.request.prompt, 131072);
  EXPECT_EQ(flags.request.parallel.tp, 4);
  EXPECT_EQ(flags.request.parallel.attn_cp, 4);
  EXPECT_TRUE(flags.json);
  EXPECT_FALSE(Parsed<PlanFlags>({"plan", "--model-path", "/m", "--prompt", "1"}).json);
}

TEST(Flags, RatesOfThePlanner) {
  const auto given = Parsed<PlanFlags>({"plan", "--shape", "x", "--prompt", "1", "--plan-profile", "p.json",
                                        "--link-gbps", "2800", "--latency-us", "0", "--tflops", "0.5"})
                         .request.parallel;
  EXPECT_EQ(given.plan_profile, "p.json");
  EXPECT_EQ(given.link_gbps, 2800);
  EXPECT_EQ(given.latency_us, 0);
  EXPECT_EQ(given.tflops, 0.5);
  EXPECT_FALSE(Parsed<ServeFlags>({"serve"}).model.engine.parallel.tflops.has_value());
}

TEST(Flags, EvalDefaultsDifferByKind) {
  const auto gsm8k = Parsed<EvalFlags>({"eval", "gsm8k", "--base-url", "http://h:1", "--data", "d"});
  EXPECT_EQ(gsm8k.kind, EvalKind::kGsm8k);
  EXPECT_EQ(gsm8k.num_shots, 5);
  EXPECT_EQ(gsm8k.num_questions, 200);
  EXPECT_EQ(gsm8k.parallel, 32);
  EXPECT_EQ(gsm8k.max_new_tokens, 512);
  const auto chat = Parsed<EvalFlags>({"eval", "chat", "--base-url", "http://h:1", "--data", "d"});
  EXPECT_EQ(chat.kind, EvalKind::kChat);
  EXPECT_EQ(chat.num_questions, 0);
  const auto needle = Parsed<EvalFlags>(
      {"eval", "needle", "--base-url", "http://h:1", "--data", "d", "--parallel", "2", "--output", "o"});
  EXPECT_EQ(needle.kind, EvalKind::kNeedle);
  EXPECT_EQ(needle.parallel, 2);
  EXPECT_EQ(needle.output, "o");
}

TEST(Flags, HelpAndVersion) {
  EXPECT_EQ(Parsed<ShowText>({"--version"}).text, "perigee " PERIGEE_VERSION "\n");
  EXPECT_THAT(Parsed<ShowText>({"--help"}).text, HasSubstr("serve"));
  EXPECT_THAT(Parsed<ShowText>({"serve", "--help"}).text, HasSubstr("--max-running-requests"));
  EXPECT_THAT(Parsed<ShowText>({"eval", "gsm8k", "-h"}).text, HasSubstr("--num-shots"));
}

struct UsageCase {
  std::vector<const char*> args;
  std::vector<const char*> said;  // all of them must be in the message
};

TEST(Flags, UsageErrorsNameFlagValueAndWhatIsAccepted) {
  const std::vector<UsageCase> cases = {
      {{}, {"serve, generate, score, eval, inspect"}},
      {{"sreve"}, {"sreve", "serve, generate, score, eval, inspect"}},
      {{"--port", "1"}, {"--port"}},
      {{"serve", "--prot", "1"}, {"--prot", "--port", "serve"}},
      {{"serve", "eval"}, {"eval", "--port"}},
      {{"serve", "extra"}, {"extra", "--port"}},
      {{"serve", "--port", "65536"}, {"--port", "65536", "from 0 to 65535"}},
      {{"serve", "--port", "-1"}, {"--port", "-1", "from 0 to 65535"}},
      {{"serve", "--port", "80x"}, {"--port", "80x"}},
      {{"serve", "--port", "0x50"}, {"--port", "0x50"}},
      {{"serve", "--port", ""}, {"--port", "from 0 to 65535"}},
      {{"serve", "--port"}, {"--port"}},
      {{"serve", "--port", "1", "--port", "2"}, {"--port"}},
      {{"serve", "--threads", "0"}, {"--threads", "\"0\"", "from 1"}},
      {{"serve", "--context-length", "0"}, {"--context-length", "from 1"}},
      {{"serve", "--max-running-requests", "0"}, {"--max-running-requests", "from 1"}},
      {{"serve", "--max-total-tokens", "99999999999999999999"}, {"--max-total-tokens", "9999"}},
      {{"serve", "--max-prefill-tokens", "64", "--chunked-prefill-size", "128"},
       {"--max-prefill-tokens 64", "--chunked-prefill-size 128"}},
      {{"serve", "--state-checkpoint-interval", "100"}, {"--state-checkpoint-interval 100", "64"}},
      {{"serve", "--state-snapshots", "x"}, {"--state-snapshots", "from 1"}},
      {{"serve", "--chunked-prefill-size", "-64"}, {"--chunked-prefill-size", "-64", "from 1"}},
      {{"serve", "--context-length", "4096", "--max-total-tokens", "1024"},
       {"--max-total-tokens", "1024", "4096"}},
      {{"serve", "--seed", "-1"}, {"--seed", "-1", "from 0"}},
      {{"serve", "--log-level", "loud"}, {"--log-level", "loud", "debug, info, warning, error, off"}},
      {{"serve", "--tp", "0"}, {"--tp", "\"0\"", "from 1 to 1024"}},
      {{"serve", "--tensor-parallel-size", "1025"}, {"--tp", "\"1025\"", "from 1 to 1024"}},
      {{"serve", "--tp", "4", "--attn-cp-size", "4"},
       {"--attn-cp-size 4", "--enable-prefill-cp", "zigzag, contiguous"}},
      {{"serve", "--tp", "4", "--attn-cp-size", "3", "--enable-prefill-cp", "--cp-strategy", "zigzag"},
       {"--attn-cp-size 3", "--tp 4", "accepted: 1, 2, 4"}},
      {{"serve", "--tp", "4", "--ep-size", "3"}, {"--ep-size 3", "--tp 4", "accepted: 1, 2, 4"}},
      {{"serve", "--tp", "4", "--attn-cp-size", "4", "--enable-prefill-cp"},
       {"--cp-strategy", "zigzag, contiguous"}},
      {{"serve", "--cp-strategy", "spiral"}, {"--cp-strategy", "spiral", "zigzag, contiguous"}},
      {{"serve", "--cp-layout", "x"}, {"--cp-layout", "\"x\"", "sharded, replicated"}},
      {{"serve", "--link-gbps", "0"}, {"--link-gbps", "\"0\"", "a number from 1e-9 to 1e9"}},
      {{"serve", "--latency-us", "-1"}, {"--latency-us", "\"-1\"", "0, or a number from 1e-9 to 1e9"}},
      {{"serve", "--tflops", "inf"}, {"--tflops", "\"inf\"", "a number from 1e-9 to 1e9"}},
      {{"serve", "--cp-kda-mode", "x"}, {"--cp-kda-mode", "\"x\"", "auto, head, state, tp"}},
      {{"serve", "--cp-attn-form", "x"}, {"--cp-attn-form", "\"x\"", "auto, absorbed, materialised"}},
      {{"serve", "--cp-attn-form", "absorbed"}, {"--cp-attn-form absorbed", "--deterministic off"}},
      {{"serve", "--deterministic", "maybe"}, {"--deterministic", "maybe", "on, off"}},
      {{"serve", "--tp", "3", "--deterministic", "on"}, {"--deterministic on", "--tp 3", "1, 2, 4 or 8"}},
      {{"serve", "--model-path", ""}, {"--model-path"}},
      {{"generate"}, {"--prompt", "--chat"}},
      {{"generate", "--prompt", "a", "--chat", "b"}, {"--prompt", "--chat"}},
      {{"generate", "--prompt", ""}, {"--prompt"}},
      {{"generate", "--prompt", "a\xff"}, {"--prompt", "UTF-8"}},
      {{"generate", "--prompt", "a", "--max-tokens", "0"}, {"--max-tokens", "\"0\"", "from 1"}},
      {{"generate", "--prompt", "a", "--temperature", "nan"}, {"--temperature", "nan", "at least 0"}},
      {{"generate", "--prompt", "a", "--temperature", "-1"}, {"--temperature", "-1", "at least 0"}},
      {{"score"}, {"--input"}},
      {{"inspect"}, {"--shape"}},
      {{"inspect", "/m", "--shape", "x"}, {"--shape"}},
      {{"plan", "--prompt", "1"}, {"--model-path", "--shape"}},
      {{"plan", "--prompt", "1", "--shape", "x", "--model-path", "/m"}, {"--model-path", "--shape"}},
      {{"plan", "--shape", "x"}, {"--prompt"}},
      {{"plan", "--shape", "x", "--prompt", "0"}, {"--prompt", "\"0\"", "from 1"}},
      {{"plan", "--shape", "x", "--prompt", "1", "--tp", "4", "--attn-cp-size", "4"},
       {"--attn-cp-size 4", "--enable-prefill-cp"}},
      {{"bench"}, {"offline"}},
      {{"bench", "offline"}, {"--prompts", "--depths"}},
      {{"bench", "offline", "--prompts", "1,,2"}, {"--prompts", "1,,2", "commas"}},
      {{"bench", "offline", "--prompts", "0"}, {"--prompts", "\"0\"", "from 1"}},
      {{"serve", "--load-format", "gguf"}, {"--load-format", "gguf", "safetensors, dummy"}},
      {{"serve", "--shape", "kimi-linear-48b"}, {"--shape kimi-linear-48b", "--load-format dummy"}},
      {{"eval"}, {"gsm8k, needle, chat"}},
      {{"eval", "mmlu"}, {"mmlu", "gsm8k, needle, chat"}},
      {{"eval", "gsm8k", "--data", "d"}, {"--base-url", "http://HOST"}},
      {{"eval", "gsm8k", "--base-url", "http://h"}, {"--data"}},
      {{"eval", "gsm8k", "--base-url", "https://h", "--data", "d"},
       {"--base-url", "https://h", "http://HOST"}},
      {{"eval", "gsm8k", "--base-url", "http://h", "--data", "d", "--parallel", "0"},
       {"--parallel", "from 1"}},
      {{"eval", "chat", "--base-url", "http://h", "--data", "d", "--num-shots", "3"}, {"--num-shots"}},
  };
  for (const UsageCase& usage : cases) {
    std::string shown;
    for (const char* arg : usage.args) shown += std::string(" ") + arg;
    const StatusOr<Command> command = Parse(usage.args);
    ASSERT_FALSE(command.ok()) << shown;
    EXPECT_THAT(command.status().code(), AnyOf(StatusCode::kInvalidArgument, StatusCode::kUsage)) << shown;
    EXPECT_EQ(command.status().message().find('\n'), std::string::npos) << command.status().message();
    for (const char* said : usage.said) EXPECT_THAT(command.status().message(), HasSubstr(said)) << shown;
  }
}

}  // namespace
}  // namespace perigee::cli
