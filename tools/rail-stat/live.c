/* SPDX-License-Identifier: Apache-2.0
 *
 * The live view: the table again and again on the terminal's other screen,
 * which is left as it was found. Plain ANSI sequences, known to every terminal.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tools/rail-stat/stat.h"

#define COLUMNS_WIDTH 44 /* of the first five of a connection: they show even on 80 columns */
#define MIN_LABEL 12

#define ENTER "\033[?1049h\033[?25l" /* other screen, no cursor */
#define LEAVE "\033[?25h\033[?1049l"
#define HOME "\033[H"
#define CLEAR_LINE "\033[K"
#define CLEAR_BELOW "\033[J"
#define BOLD "\033[1m"
#define PLAIN "\033[0m"

static volatile sig_atomic_t stopped, resized;

static void on_stop(int number) { stopped = number; }
static void on_resize(int number) { resized = number; }

static void print_cut(const char *line, size_t len, size_t width, bool bold) {
  fputs(bold ? BOLD : "", stdout);
  fwrite(line, 1, RAIL_MIN(len, width), stdout);
  fputs(bold ? PLAIN CLEAR_LINE : CLEAR_LINE, stdout);
}

static struct winsize screen_size(void) {
  struct winsize size = {0};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 3 || size.ws_col < 10)
    size = (struct winsize){.ws_row = 24, .ws_col = 80};
  return size;
}

/* As many lines as there is room for; a block's first line, which is not indented, is bold. */
static void draw(struct winsize size, const char *title, const char *text) {
  int room = size.ws_row - 1, left = 0;
  fputs(HOME, stdout);
  print_cut(title, strlen(title), size.ws_col, false);
  while (*text) {
    size_t len = strcspn(text, "\n");
    if (room > 1) {
      fputc('\n', stdout);
      print_cut(text, len, size.ws_col, *text != ' ');
      room--;
    } else {
      left++;
    }
    text += len + (text[len] == '\n');
  }
  if (left) printf("\n" CLEAR_LINE "(%d more lines)", left);
  fputs(CLEAR_BELOW, stdout);
}

/* False: the terminal or memory is gone, or there was no snapshot. */
static bool refresh(struct rs_options *o, struct rs_snapshot *before) {
  const struct winsize screen = screen_size();
  struct rs_snapshot shot;
  char *text = NULL, hidden[128], title[256], clock[32] = "";
  size_t size = 0;
  if (rs_snapshot_take(o, &shot) != 0) return false;
  o->label_width = RAIL_MAX(screen.ws_col - COLUMNS_WIDTH, MIN_LABEL);
  FILE *f = open_memstream(&text, &size);
  if (f) rs_table(f, o, &shot, before);
  if (!f || fclose(f) != 0) {
    free(text);
    rs_snapshot_free(&shot);
    return false;
  }
  time_t now = time(NULL);
  struct tm tm;
  if (localtime_r(&now, &tm)) strftime(clock, sizeof clock, "%H:%M:%S", &tm);
  rs_hidden_text(&shot, hidden, sizeof hidden);
  snprintf(title, sizeof title, RS_NAME "  %s  q: quit  s: streams %s  %s", clock, o->streams ? "off" : "on", hidden);
  draw(screen, title, text);
  free(text);
  rs_snapshot_free(before);
  *before = shot;
  return fflush(stdout) == 0;
}

/* Waits for the next refresh, a key or a signal; keys come only from a terminal. False: q. */
static bool wait_key(struct rs_options *o, uint64_t deadline, bool keys) {
  struct pollfd in = {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN};
  while (!stopped && !resized && !rail_deadline_passed(deadline)) {
    char key = 0;
    if (poll(&in, 1, rail_deadline_left_ms(deadline)) <= 0) continue;
    if (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q') return false;
    if (key == 's') {
      o->streams = !o->streams;
      return true;
    }
  }
  return true;
}

int rs_live(struct rs_options *o) {
  static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  struct sigaction stop = {.sa_handler = on_stop}, resize = {.sa_handler = on_resize};
  struct termios was, raw;
  struct rs_snapshot before = {0};
  bool keys = tcgetattr(STDIN_FILENO, &was) == 0, ok = true;
  for (size_t i = 0; i < RAIL_COUNT_OF(ends); i++) sigaction(ends[i], &stop, NULL);
  sigaction(SIGWINCH, &resize, NULL);
  signal(SIGTSTP, SIG_IGN); /* a stopped view would leave the shell its screen */
  if (keys) {
    raw = was;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
  }
  fputs(ENTER, stdout);
  do {
    resized = 0;
    ok = refresh(o, &before);
  } while (ok && wait_key(o, rail_deadline_in_ms(o->interval_ms), keys) && !stopped);
  fputs(LEAVE, stdout);
  if (fflush(stdout) != 0) ok = false;
  if (keys) tcsetattr(STDIN_FILENO, TCSAFLUSH, &was);
  rs_snapshot_free(&before);
  return ok ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
}
