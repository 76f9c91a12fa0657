#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "cli/http_client.h"
#include "engine/plan_rates.h"
#include "text/tokenizer.h"

namespace perigee::cli {
namespace {

// No count on the command line is meant to exceed this; it keeps sums of counts far from overflow.
constexpr int64_t kMaxCount = 1'000'000'000;
constexpr int64_t kMaxSeed = std::numeric_limits<int64_t>::max();

// Stores a value; returns what would be accepted when it is not, else nothing.
using Store = std::function<std::string(const std::string&)>;

CLI::Option* AddValue(CLI::App& app, const std::string& names, const std::string& placeholder,
                      const std::string& help, Store store) {
  const std::string flag = names.substr(0, names.find(','));
  return app
      .add_option_function<std::string>(
          names,
          [flag, store = std::move(store)](const std::string& value) {
            const std::string accepted = store(value);
            if (!accepted.empty()) {
              throw CLI::ValidationError(
                  StrCat(flag, " ", Quoted(value), " is not accepted; accepted: ", accepted));
            }
          },
          help)
      ->type_name(placeholder);
}

bool ReadInteger(const std::string& text, int64_t low, int64_t high, int64_t* value) {
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, *value);
  return error == std::errc() && end == last && *value >= low && *value <= high;
}

bool ReadNumber(const std::string& text, double* value) {
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, *value);
  return error == std::errc() && end == last && std::isfinite(*value);
}

template <typename T>
CLI::Option* AddInteger(CLI::App& app, const std::string& names, const std::string& help, int64_t low,
                        int64_t high, T* target) {
  return AddValue(app, names, "N", help, [=](const std::string& text) -> std::string {
    int64_t value = 0;
    if (!ReadInteger(text, low, high, &value)) return StrCat("an integer from ", low, " to ", high);
    *target = static_cast<T>(value);
    return "";
  });
}

CLI::Option* AddText(CLI::App& app, const std::string& names, const std::string& placeholder,
                     const std::string& help, std::string* target) {
  return AddValue(app, names, placeholder, help, [=](const std::string& text) -> std::string {
    if (text.empty()) return "a text that is not empty";
    *target = text;
    return "";
  });
}

CLI::Option* AddPrompt(CLI::App& app, const std::string& names, const std::string& help, bool may_be_empty,
                       std::optional<std::string>* target) {
  return AddValue(app, names, "TEXT", help, [=](const std::string& text) -> std::string {
    if (text.empty() && !may_be_empty) return "a text that is not empty";
    if (!text::IsValidUtf8(text)) return "valid UTF-8";
    *target = text;
    return "";
  });
}

void AddChoice(CLI::App& app, const std::string& name, const std::string& help,
               std::vector<std::string> accepted, std::string* target) {
  AddValue(app, name, "NAME", help,
           [accepted = std::move(accepted), target](const std::string& text) -> std::string {
             if (std::find(accepted.begin(), accepted.end(), text) == accepted.end())
               return StrJoin(accepted, ", ");
             *target = text;
             return "";
           });
}

// What --cp-kda-mode auto chooses by.
void AddRateFlags(CLI::App& app, engine::ParallelOptions* parallel) {
  const auto add = [&](const char* name, const char* help, bool zero, std::optional<double>* target) {
    AddValue(app, name, "X", help, [=](const std::string& text) -> std::string {
      double value = 0;
      if (!ReadNumber(text, &value) || !engine::IsRate(value, zero)) {
        return std::string(engine::AcceptedRate(zero));
      }
      *target = value;
      return "";
    });
  };
  AddText(app, "--plan-profile", "FILE", "JSON file of the rates that --cp-kda-mode auto reckons with",
          &parallel->plan_profile);
  add("--link-gbps", "Gigabits that a rank sends in a second", false, &parallel->link_gbps);
  add("--latency-us", "Microseconds that a collective takes besides", true, &parallel->latency_us);
  add("--tflops", "10^12 operations that a rank does in a second", false, &parallel->tflops);
}

// How the model is spread over ranks. What goes together is checked by the engine.
void AddParallelFlags(CLI::App& app, engine::ParallelOptions* parallel) {
  AddInteger(app, "--tp,--tp-size,--tensor-parallel-size",
             "Ranks that share the model: threads, or processes under mpirun (1)", 1, 1024, &parallel->tp);
  AddInteger(app, "--attn-cp-size,--attention-context-parallel-size",
             "Ranks that share the rows of a prompt (1); divides --tp", 1, 1024, &parallel->attn_cp);
  app.add_flag("--enable-prefill-cp", parallel->enable_prefill_cp,
               "Split the rows of prompts over the CP ranks");
  AddText(app, "--cp-strategy", "NAME", "How rows are split: zigzag or contiguous", &parallel->cp_strategy);
  AddChoice(app, "--cp-layout", "Where the residual lives in prefill: sharded or replicated (sharded)",
            {"sharded", "replicated"}, &parallel->cp_layout);
  AddChoice(app, "--cp-kda-mode", "How KDA runs in prefill: auto, head, state or tp (auto)",
            {"auto", "head", "state", "tp"}, &parallel->cp_kda_mode);
  AddChoice(app, "--cp-attn-form", "How MLA evaluates prompts: auto, absorbed or materialised (auto)",
            {"auto", "absorbed", "materialised"}, &parallel->cp_attn_form);
  AddInteger(app, "--ep-size,--expert-parallel-size",
             "Ranges that the experts are cut into (1); divides --tp", 1, 1024, &parallel->ep);
  AddValue(app, "--deterministic", "on|off", "The same bits however the model is spread (on where it can be)",
           [parallel](const std::string& text) -> std::string {
             if (text != "on" && text != "off") return "on, off";
             parallel->deterministic = text == "on";
             return "";
           });
  AddRateFlags(app, parallel);
}

// Sizes of pools and steps.
void AddSizeFlags(CLI::App& app, engine::EngineConfig* engine) {
  AddInteger(app, "--context-length", "Most tokens of one request, prompt and answer", 1, kMaxCount,
             &engine->context_length);
  AddInteger(app, "--max-running-requests", "Most requests that run at the same time", 1, 65536,
             &engine->max_running_requests);
  AddInteger(app, "--max-total-tokens", "Tokens that the latent cache holds", 1, kMaxCount,
             &engine->max_total_tokens);
  AddInteger(app, "--chunked-prefill-size", "Prompt tokens computed in one step (2048, or 8192 a CP rank)", 1,
             1 << 20, &engine->chunked_prefill_size);
  AddInteger(app, "--max-prefill-tokens", "Prompt tokens of one step, all prompts together (a chunk)", 1,
             1 << 20, &engine->max_prefill_tokens);
  app.add_flag_callback(
      "--disable-radix-cache", [engine] { engine->prefix_cache = false; },
      "Compute every prompt anew: keep no prefixes for later requests");
  AddInteger(app, "--state-snapshots", "States that the prefix cache keeps (twice the running requests)", 1,
             65536, &engine->state_snapshots);
  AddInteger(app, "--state-checkpoint-interval",
             "Prompt tokens from one kept state to the next, a multiple of 64 (a chunk)", 1, kMaxCount,
             &engine->state_checkpoint_interval);
  AddValue(app, "--device", "NAME", "What computes: cpu or cuda (cpu)",
           [engine](const std::string& text) -> std::string {
             for (const Device device : {Device::kCpu, Device::kCuda}) {
               if (text == DeviceName(device)) {
                 engine->device = device;
                 return "";
               }
             }
             return "cpu, cuda";
           });
  AddValue(app, "--mem-fraction-static", "X",
           "Part of the memory that weights, pools and workspace may take (0.8)",
           [engine](const std::string& text) -> std::string {
             double value = 0;
             const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
             if (error != std::errc() || end != text.data() + text.size() || !(value > 0 && value <= 1)) {
               return "a number above 0 and up to 1";
             }
             engine->mem_fraction_static = value;
             return "";
           });
  AddInteger(app, "--threads", "Compute threads of all ranks together", 1, 1024, &engine->threads);
}

void AddModelFlags(CLI::App& app, ModelFlags* flags) {
  engine::EngineConfig* engine = &flags->engine;
  AddText(app, "--model-path", "DIR", "HuggingFace model folder; without it the bundled model",
          &engine->model_path);
  AddValue(app, "--load-format", "NAME",
           "Where weights come from: safetensors, or dummy for random ones (safetensors)",
           [engine](const std::string& text) -> std::string {
             if (text != "safetensors" && text != "dummy") return "safetensors, dummy";
             engine->dummy_weights = text == "dummy";
             return "";
           });
  AddText(app, "--shape", "NAME",
          "With dummy weights: a known shape (kimi-linear-48b); --model-path then gives the tokenizer",
          &engine->shape);
  AddSizeFlags(app, engine);
  AddValue(app, "--seed", "N", "Seed of requests that bring none (another in every run)",
           [engine](const std::string& text) -> std::string {
             int64_t value = 0;
             if (!ReadInteger(text, 0, kMaxSeed, &value)) return StrCat("an integer from 0 to ", kMaxSeed);
             // The engine's own 0 means "draw one".
             engine->seed = static_cast<uint64_t>(value) + 1;
             return "";
           });
  AddParallelFlags(app, &engine->parallel);
  AddInteger(app, "--watchdog-timeout",
             "Seconds without progress after which /health fails, and under mpirun a silent rank or a stuck "
             "step is a failure (300)",
             1, 86400, &flags->watchdog_seconds);
  AddValue(app, "--log-level", "LEVEL", "debug, info, warning, error or off",
           [flags](const std::string& text) -> std::string {
             const StatusOr<LogLevel> level = ParseLogLevel(text);
             if (!level.ok()) return "debug, info, warning, error, off";
             flags->log_level = *level;
             return "";
           });
  app.add_flag("--trust-remote-code", flags->trust_remote_code,
               "Accepted and without effect: code of a model folder never runs");
}

void AddServe(CLI::App& root, ServeFlags* flags) {
  CLI::App& app = *root.add_subcommand("serve", "Serve a model over HTTP");
  flags->model.log_level = LogLevel::kInfo;
  AddModelFlags(app, &flags->model);
  AddText(app, "--host", "HOST", "Address to listen on (127.0.0.1)", &flags->host);
  AddInteger(app, "--port", "Port to listen on (30000); 0 takes a free one", 0, 65535, &flags->port);
  AddText(app, "--served-model-name", "NAME", "Name in /v1/models (the folder's name)",
          &flags->served_model_name);
  AddInteger(app, "--drain-timeout",
             "Seconds that running answers may go on after the first signal (30); then they are cut off", 0,
             86400, &flags->drain_seconds);
  app.add_flag("--strict-template", flags->model.strict_template,
               "Refuse a model whose chat template says what is not rendered here");
}

void AddGenerate(CLI::App& root, GenerateFlags* flags) {
  CLI::App& app = *root.add_subcommand("generate", "Answer one prompt on the terminal");
  AddModelFlags(app, &flags->model);
  AddPrompt(app, "--prompt", "Raw prompt: names of special tokens become their ids", false, &flags->prompt);
  AddPrompt(app, "--chat", "One user message in the model's chat format", true, &flags->chat);
  AddValue(app, "--max-tokens", "N", "Most tokens of the answer (256)",
           [flags](const std::string& text) -> std::string {
             int64_t value = 0;
             if (!ReadInteger(text, 1, kMaxCount, &value)) return StrCat("an integer from 1 to ", kMaxCount);
             flags->max_tokens = value;
             return "";
           });
  AddValue(app, "--temperature", "X", "Sampling temperature; 0 takes the most probable token (0)",
           [flags](const std::string& text) -> std::string {
             double value = 0;
             if (!ReadNumber(text, &value) || value < 0) return "a number of at least 0";
             flags->temperature = value;
             return "";
           });
  app.add_flag("--strict-template", flags->model.strict_template,
               "Refuse a model whose chat template says what is not rendered here");
}

void AddScore(CLI::App& root, ScoreFlags* flags) {
  CLI::App& app = *root.add_subcommand("score", "Log-probabilities of given texts or token ids");
  AddModelFlags(app, &flags->model);
  AddText(app, "--input", "FILE", R"(JSON: {"cases": [{"ids": [...]} or {"text": "..."}]})", &flags->input);
  AddText(app, "--output", "FILE", "Where to write the cases with their results (standard output)",
          &flags->output);
}

void AddEval(CLI::App& group, EvalFlags* flags, const std::string& name, const std::string& help) {
  CLI::App& app = *group.add_subcommand(name, help);
  AddValue(app, "--base-url", "URL", "Server to ask: http://HOST[:PORT]",
           [flags](const std::string& text) -> std::string {
             if (!ParseHttpUrl(text)) return "http://HOST[:PORT][/PREFIX]";
             flags->base_url = text;
             return "";
           });
  AddText(app, "--data", "FILE", "Questions, one JSON object a line", &flags->data);
  AddInteger(app, "--num-questions", "Most questions to ask", 1, kMaxCount, &flags->num_questions);
  AddInteger(app, "--parallel", "Requests in flight (32)", 1, 1024, &flags->parallel);
  AddInteger(app, "--max-new-tokens", "Most tokens of an answer (512)", 1, kMaxCount, &flags->max_new_tokens);
  AddInteger(app, "--timeout", "Seconds that one request may take (600)", 1, 86400, &flags->timeout_seconds);
  AddText(app, "--output", "FILE", "Where to write every answer, one JSON object a line", &flags->output);
  if (flags->kind == EvalKind::kGsm8k) {
    AddInteger(app, "--num-shots", "Examples before each question: the first lines of the data (5)", 0, 1000,
               &flags->num_shots);
  }
}

void AddIntegers(CLI::App& app, const std::string& names, const std::string& help, int64_t low, int64_t high,
                 std::vector<int64_t>* target) {
  AddValue(app, names, "N,N,...", help, [=](const std::string& text) -> std::string {
    std::vector<int64_t> values;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      int64_t value = 0;
      if (!ReadInteger(text.substr(begin, end - begin), low, high, &value))
        return StrCat("integers from ", low, " to ", high, " with commas between them");
      values.push_back(value);
      begin = end + 1;
    }
    *target = std::move(values);
    return "";
  });
}

void AddBenchOffline(CLI::App& group, BenchOfflineFlags* flags) {
  CLI::App& app = *group.add_subcommand("offline", "Prefill and decode of a model in this process");
  AddModelFlags(app, &flags->model);
  AddIntegers(app, "--prompts", "Prompt lengths to measure, one at a time", 1, kMaxCount, &flags->prompts);
  AddIntegers(app, "--batches", "Answers that are generated together (1)", 1, 65536, &flags->batches);
  AddIntegers(app, "--depths", "Prompt lengths after which they are measured", 0, kMaxCount, &flags->depths);
  AddInteger(app, "--repeats", "Prompts of each length after a warm-up (5)", 1, 1000, &flags->repeats);
  AddInteger(app, "--steps", "Generated tokens that count (32)", 1, 10000, &flags->steps);
  AddText(app, "--output", "FILE", "Where to write the results as JSON", &flags->output);
}

void AddPlan(CLI::App& root, PlanFlags* flags) {
  CLI::App& app = *root.add_subcommand("plan", "What a prompt moves, computes and keeps on given ranks");
  AddText(app, "--model-path", "DIR", "Model folder; config.json and the headers of its weights are read",
          &flags->request.model_path);
  AddText(app, "--shape", "NAME", "A known shape instead of a folder", &flags->request.shape);
  AddInteger(app, "--prompt", "Tokens of the prompt", 1, kMaxCount, &flags->request.prompt);
  AddParallelFlags(app, &flags->request.parallel);
  AddSizeFlags(app, &flags->request.sizes);
  app.add_flag("--json", flags->json, "One JSON object instead of tables");
}

std::string NamesOfOptions(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    names.push_back(option->get_positional() ? option->get_name(true) : option->get_name());
  }
  return StrJoin(names, ", ");
}

std::string NamesOfCommands(CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return StrJoin(names, ", ");
}

// The application with all its flags, and the structs they fill.
struct Grammar {
  CLI::App app{"perigee serves Kimi-Linear models", "perigee"};
  ServeFlags serve;
  GenerateFlags generate;
  ScoreFlags score;
  EvalFlags gsm8k{.kind = EvalKind::kGsm8k, .num_questions = 200};
  EvalFlags needle{.kind = EvalKind::kNeedle};
  EvalFlags chat{.kind = EvalKind::kChat};
  InspectFlags inspect;
  PlanFlags plan;
  BenchOfflineFlags bench_offline;

  Grammar() {
    app.set_version_flag("--version", std::string("perigee ") + PERIGEE_VERSION, "Print the version");
    AddServe(app, &serve);
    AddGenerate(app, &generate);
    AddScore(app, &score);
    CLI::App* eval = app.add_subcommand("eval", "Score a running server on a data set");
    AddEval(*eval, &gsm8k, "gsm8k", "Word problems, few-shot, last number counts");
    AddEval(*eval, &needle, "needle", "Chats whose answer is given word for word");
    AddEval(*eval, &chat, "chat", "Raw prompts whose answer is given to the character");
    CLI::App* show = app.add_subcommand("inspect", "Layers, parameters and memory of a model");
    AddText(*show, "folder", "DIR", "Model folder", &inspect.folder);
    AddText(*show, "--shape", "NAME", "A known shape instead of a folder", &inspect.shape);
    AddPlan(app, &plan);
    CLI::App* bench = app.add_subcommand("bench", "Measure a model");
    AddBenchOffline(*bench, &bench_offline);
    LeaveExtrasToUs(app);
  }

  // Unknown arguments are reported by CheckExtras, which can say what would be accepted.
  static void LeaveExtrasToUs(CLI::App& each) {
    each.allow_extras();
    each.require_subcommand(0, 1);
    each.set_help_flag("-h,--help", "Print this help");
    for (CLI::App* sub : each.get_subcommands({})) LeaveExtrasToUs(*sub);
  }
};

// The selected command, innermost.
CLI::App& Selected(CLI::App& app) {
  CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

Status CheckExtras(CLI::App& app) {
  for (CLI::App* at = &app;; at = at->get_subcommands().front()) {
    const std::vector<std::string> extras = at->remaining();
    const bool is_group = !at->get_subcommands({}).empty();
    if (!extras.empty()) {
      const std::string& first = extras.front();
      if (is_group && first.substr(0, 1) != "-") {
        return InvalidArgument(
            StrCat("unknown command ", Quoted(first), "; accepted: ", NamesOfCommands(*at)));
      }
      return InvalidArgument(StrCat("unknown argument ", Quoted(first), " of ", at->get_name(),
                                    "; accepted: ", NamesOfOptions(*at)));
    }
    if (at->get_subcommands().empty()) {
      if (!is_group) return Status::Ok();
      return InvalidArgument(StrCat(at->get_name(), " needs a command; accepted: ", NamesOfCommands(*at)));
    }
  }
}

StatusOr<Command> CheckEval(const EvalFlags& flags) {
  if (flags.base_url.empty()) return InvalidArgument("--base-url is required; accepted: http://HOST[:PORT]");
  if (flags.data.empty()) return InvalidArgument("--data is required; accepted: a file of JSON lines");
  return Command(flags);
}

StatusOr<Command> CheckPlan(PlanFlags& flags) {
  const engine::PlanRequest& request = flags.request;
  if (request.model_path.empty() == request.shape.empty())
    return InvalidArgument("plan needs exactly one of --model-path DIR and --shape NAME");
  if (request.prompt == 0) return InvalidArgument("--prompt is required; accepted: a number of tokens");
  if (const auto plan = engine::ResolveParallel(request.parallel); !plan.ok()) return plan.status();
  PERIGEE_RETURN_IF_ERROR(engine::CheckConfig(request.sizes));
  return Command(std::move(flags));
}

StatusOr<Command> CheckBenchOffline(BenchOfflineFlags& flags) {
  if (flags.prompts.empty() && flags.depths.empty())
    return InvalidArgument("bench offline needs --prompts N,... or --depths N,... or both");
  return Command(std::move(flags));
}

// What flags demand of each other.
StatusOr<Command> CheckCommand(Grammar& grammar) {
  const CLI::App& selected = Selected(grammar.app);
  const std::string name = selected.get_name();
  for (const ModelFlags* flags :
       {&grammar.serve.model, &grammar.generate.model, &grammar.score.model, &grammar.bench_offline.model}) {
    PERIGEE_RETURN_IF_ERROR(engine::CheckConfig(flags->engine));
  }
  if (name == "serve") return Command(std::move(grammar.serve));
  if (name == "generate") {
    if (grammar.generate.prompt.has_value() == grammar.generate.chat.has_value()) {
      return InvalidArgument("generate needs exactly one of --prompt TEXT and --chat TEXT");
    }
    return Command(std::move(grammar.generate));
  }
  if (name == "score") {
    if (grammar.score.input.empty()) return InvalidArgument("--input is required; accepted: a JSON file");
    return Command(std::move(grammar.score));
  }
  if (name == "inspect") {
    if (grammar.inspect.folder.empty() == grammar.inspect.shape.empty()) {
      return InvalidArgument("inspect needs exactly one of a model folder and --shape NAME");
    }
    return Command(std::move(grammar.inspect));
  }
  if (name == "plan") return CheckPlan(grammar.plan);
  if (name == "offline") return CheckBenchOffline(grammar.bench_offline);
  if (name == "gsm8k") return CheckEval(grammar.gsm8k);
  if (name == "needle") return CheckEval(grammar.needle);
  return CheckEval(grammar.chat);
}

}  // namespace

StatusOr<Command> ParseCommandLine(std::span<const char* const> args) {
  Grammar grammar;
  grammar.bench_offline.command = "perigee";
  for (const char* arg : args) grammar.bench_offline.command += StrCat(" ", arg);
  // CLI11 takes the arguments from the back.
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  try {
    grammar.app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    return Command(ShowText{grammar.app.help()});
  } catch (const CLI::CallForVersion& version) {
    return Command(ShowText{StrCat(version.what(), "\n")});
  } catch (const CLI::ParseError& error) {
    return InvalidArgument(error.what());
  }
  PERIGEE_RETURN_IF_ERROR(CheckExtras(grammar.app));
  return CheckCommand(grammar);
}

}  // namespace perigee::cli
