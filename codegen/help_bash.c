/* Completion for bash, by the rows of verbs.def and options.def. */
#include <string.h>

#include "codegen/cli.h"

/* What completes a value: how the script calls it. */
static const char *completer(const OptRow *row)
{
  static const struct {
    const char *value, *calls;
  } kinds[] = {{"FILE", "files"},       {"PATH", "files"},  {"LIBRARY", "files"},
               {"SPEC,TRACE", "files"}, {"DIR", "folders"}, {"COMMAND", "commands"}};
  if (row->words) {
    return row->value && strcmp(row->value, "NAMES") == 0 ? "list" : "words";
  }
  for (size_t i = 0; row->value && i < sizeof kinds / sizeof *kinds; i++) {
    if (strcmp(kinds[i].value, row->value) == 0) {
      return kinds[i].calls;
    }
  }
  return strcmp(row->name, "shape") == 0 ? "shapes" : strcmp(row->name, "define") == 0 ? "lets" : "nothing";
}

static void print_verbs(FILE *out)
{
  fputs("_moec_verbs='", out);
  for (int v = 0; v < N_VERBS; v++) {
    fprintf(out, "%s%s", v ? " " : "", cli_verbs[v].name);
  }
  fputs("'\n\n# What may follow a verb that begins with a dash.\n_moec_options() {\n  case $1 in\n", out);
  for (int v = 0; v < N_VERBS; v++) {
    fprintf(out, "    %s) echo '", cli_verbs[v].name);
    for (int i = 0; i < cli_n_options; i++) {
      if (cli_options[i].verbs >> v & 1) {
        fprintf(out, "--%s ", cli_options[i].name);
      }
    }
    fputs("--help' ;;\n", out);
  }
  fputs("    *) echo '--help --version' ;;\n  esac\n}\n\n", out);
}

static void print_values(FILE *out)
{
  fputs("# Completes the value of option $1; fails if it takes none.\n_moec_value() {\n  case $1 in\n", out);
  for (int i = 0; i < cli_n_options; i++) {
    const OptRow *row = &cli_options[i];
    if (row->value) {
      fprintf(out, "    --%s", row->name);
      if (row->letter) {
        fprintf(out, " | -%c", row->letter);
      }
      fprintf(out, ") _moec_%s", completer(row));
      if (row->words) {
        fprintf(out, " '%.*s'", (int)(strlen(row->words) - (row->words[strlen(row->words) - 1] == ' ')), row->words);
      }
      fputs(" ;;\n", out);
    }
  }
  fputs("    *) return 1 ;;\n  esac\n}\n\n", out);
}

static void print_word(FILE *out)
{
  fputs("# The word besides options.\n_moec_word() {\n  case $1 in\n", out);
  for (int v = 0; v < N_VERBS; v++) {
    const char *takes = cli_verbs[v].takes;
    if (takes) {
      fprintf(out, "    %s) ", cli_verbs[v].name);
      if (strcmp(takes, "[VERB]") == 0) {
        fputs("_moec_words \"$_moec_verbs\"", out);
      } else {
        const char *ending = strchr(takes, '|') ? NULL : strrchr(takes, '.');
        fprintf(out, ending ? "_moec_files '*%s'" : "_moec_files", ending);
      }
      fputs(" ;;\n", out);
    }
  }
  fputs("  esac\n}\n\n", out);
}

/* Shared by all: $cur is what is being completed, $spec the spec on the line. bash splits --option=value at the sign.
 */
static const char head[] =
    "# Completion of moec and of the programs that it builds, for bash; written by `moec help --as bash`.\n\n"
    "_moec_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$cur\"); }\n"
    "_moec_list() {\n"
    "  local before=''\n"
    "  [[ $cur == *,* ]] && before=${cur%,*},\n"
    "  mapfile -t COMPREPLY < <(compgen -P \"$before\" -W \"$1\" -- \"${cur##*,}\")\n"
    "}\n"
    "_moec_files() {\n"
    "  compopt -o filenames 2>/dev/null\n"
    "  if [ -n \"$1\" ]; then\n"
    "    mapfile -t COMPREPLY < <(compgen -d -- \"$cur\"; compgen -f -X \"!$1\" -- \"$cur\")\n"
    "  else\n"
    "    mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
    "  fi\n"
    "}\n"
    "_moec_folders() { compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- \"$cur\"); }\n"
    "_moec_commands() { mapfile -t COMPREPLY < <(compgen -c -- \"$cur\"); }\n"
    "_moec_nothing() { COMPREPLY=(); }\n"
    "_moec_named() { [ -f \"$spec\" ] && sed -n "
    "\"s/^[[:space:]]*$1[[:space:]]\\{1,\\}\\([A-Za-z_][A-Za-z0-9_]*\\).*/\\1/p\" "
    "\"$spec\"; }\n"
    "_moec_shapes() { _moec_list \"$(_moec_named shape)\"; }\n"
    "_moec_lets() { compopt -o nospace 2>/dev/null; mapfile -t COMPREPLY < <(compgen -S = -W \"$(_moec_named let)\" -- "
    "\"$cur\"); }\n\n";

static const char tail[] =
    "_moec() {\n"
    "  local cur=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - 1]} verb='' spec='' word i\n"
    "  COMPREPLY=()\n"
    "  if [ \"$cur\" = '=' ]; then\n"
    "    cur=''\n"
    "  elif [ \"$last\" = '=' ] && [ \"$COMP_CWORD\" -gt 2 ]; then\n"
    "    last=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "  fi\n"
    "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
    "    word=${COMP_WORDS[i]}\n"
    "    [[ -z $verb && \" $_moec_verbs \" == *\" $word \"* ]] && verb=$word\n"
    "    [[ $word == *.moespec ]] && spec=$word\n"
    "  done\n"
    "  _moec_value \"$last\" && return\n"
    "  if [[ $cur == -* ]]; then\n"
    "    _moec_words \"$(_moec_options \"$verb\")\"\n"
    "  elif [ -z \"$verb\" ]; then\n"
    "    _moec_words \"$_moec_verbs\"\n"
    "  else\n"
    "    _moec_word \"$verb\"\n"
    "  fi\n"
    "}\n"
    "complete -F _moec moec\n\n"
    "# A program that moec built says itself which options it takes; another one of that name is not started.\n"
    "_moec_train() {\n"
    "  local cur=${COMP_WORDS[COMP_CWORD]}\n"
    "  COMPREPLY=()\n"
    "  if [[ $cur == -* && -f ${1%/*}/moec-manifest.txt ]]; then\n"
    "    _moec_words \"$(\"$1\" --help 2>&1 | grep -o '^ *--[a-z-]*')\"\n"
    "  else\n"
    "    _moec_files\n"
    "  fi\n"
    "}\n"
    "complete -F _moec_train train\n";

void help_print_bash(FILE *out)
{
  fputs(head, out);
  print_verbs(out);
  print_values(out);
  print_word(out);
  fputs(tail, out);
}
