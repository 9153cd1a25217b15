/*
 * The load client that all brokers are measured with: plain AMQP 1.0 through the engine of Apache Qpid Proton.
 *
 * One thread, any number of connections. It connects, attaches its links and prints "ready"; a line on its input starts
 * the time; at the end it prints one line of JSON. All times are of CLOCK_MONOTONIC, which processes share.
 *
 *   send     durable messages, unsettled, many in flight, until each has its outcome; with --rate one every so often
 *   receive  accept each message, and wait for the confirmation where the broker gives one
 *   sink     a broker that keeps nothing and is as quick as can be: what the client can do at most
 *
 * It knows nothing of the brokers: address, login and settlement mode are arguments.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <proton/connection.h>
#include <proton/connection_driver.h>
#include <proton/delivery.h>
#include <proton/link.h>
#include <proton/sasl.h>
#include <proton/session.h>
#include <proton/terminus.h>
#include <proton/transport.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_SIZE = 128 * 1024, AT_ONCE = 128 * 1024, FRAME_SIZE = 128 * 1024, SINK_CREDIT = 2000, EVENTS = 256 };
static const double GRACE_SECONDS = 20; /* for outcomes that are due when the time is up */

typedef enum { SEND, RECEIVE, SINK } Mode;

typedef struct {
  pn_connection_driver_t driver;
  pn_session_t *session;
  pn_link_t **links;
  int link_count, next_link, opened, closed;
  int fd;
  bool waits_for_room, gone;
  long quota, sent, in_flight; /* of a sender */
} Conn;

static struct {
  Mode mode;
  const char *user, *password, *address;
  int port, queues, connections, size, window, credit;
  long count;
  double seconds, rate, quiet;
  bool confirmed, latency;
} opt = {.queues = 1, .connections = 1, .size = 1024, .window = 2000, .credit = 1000, .count = 1, .seconds = 600};

static Conn **conns;
static int conn_count, poller, listener;
static bool running, closing;
static long sent, outcomes, refused, received, settled;
static double began, ended, last_at;
static char *payload, *arrived;
static size_t payload_size, body_at;
static double *due_at, *latencies;
static long latency_count;

static void fail(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vfprintf(stderr, format, list);
  va_end(list);
  fputc('\n', stderr);
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* A durable message with a message-id and one data section, which is its end: no section follows the body. */
static void make_payload(void) {
  static const unsigned char head[] = {0x00, 0x53, 0x70, 0xc0, 0x02, 0x01, 0x41,              /* header: durable */
                                       0x00, 0x53, 0x73, 0xc0, 0x13, 0x01, 0xa1, 0x10,        /* properties: an id of */
                                       'x',  'x',  'x',  'x',  'x',  'x',  'x',  'x',         /* 16 characters */
                                       'x',  'x',  'x',  'x',  'x',  'x',  'x',  'x',
                                       0x00, 0x53, 0x75, 0xb0};                               /* data, long form */
  uint32_t length = htonl((uint32_t)opt.size);
  body_at = sizeof head + sizeof length;
  payload_size = body_at + (size_t)opt.size;
  payload = malloc(payload_size);
  memcpy(payload, head, sizeof head);
  memcpy(payload + sizeof head, &length, sizeof length);
  memset(payload + body_at, 'x', (size_t)opt.size);
}

/* --- connections --- */

static void make_links(Conn *c, int index) {
  c->links = calloc((size_t)opt.queues, sizeof *c->links);
  for (int queue = 0; queue < opt.queues; queue++) {
    /* Many queues are shared out among the connections; of fewer queues than connections, each connection has one. */
    if (opt.queues >= opt.connections ? queue % opt.connections != index : index % opt.queues != queue) continue;
    char address[512], name[64];
    if (opt.queues == 1)
      snprintf(address, sizeof address, "%s", opt.address);
    else
      snprintf(address, sizeof address, "%s-%03d", opt.address, queue);
    snprintf(name, sizeof name, "load-%d-%d-%d-%d", (int)getpid(), opt.mode, index, queue);
    pn_link_t *link;
    if (opt.mode == SEND) {
      link = pn_sender(c->session, name);
      pn_terminus_set_address(pn_link_target(link), address);
      pn_link_set_snd_settle_mode(link, PN_SND_UNSETTLED);
    } else {
      link = pn_receiver(c->session, name);
      pn_terminus_set_address(pn_link_source(link), address);
      pn_link_set_snd_settle_mode(link, PN_SND_UNSETTLED);
      pn_link_set_rcv_settle_mode(link, opt.confirmed ? PN_RCV_SECOND : PN_RCV_FIRST);
    }
    pn_link_open(link);
    c->links[c->link_count++] = link;
  }
}

static Conn *adopt(int fd, bool server) {
  Conn *c = calloc(1, sizeof *c);
  int yes = 1;
  c->fd = fd;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  if (pn_connection_driver_init(&c->driver, NULL, NULL)) fail("no memory for a connection");
  pn_transport_t *transport = c->driver.transport;
  pn_transport_set_max_frame(transport, FRAME_SIZE);
  if (server) {
    pn_transport_set_server(transport);
    pn_sasl_allowed_mechs(pn_sasl(transport), "ANONYMOUS");
  } else {
    char name[64];
    snprintf(name, sizeof name, "load-%d-%d", (int)getpid(), conn_count);
    pn_connection_set_container(c->driver.connection, name);
    pn_connection_set_hostname(c->driver.connection, "localhost");
    if (opt.user) {
      pn_connection_set_user(c->driver.connection, opt.user);
      pn_connection_set_password(c->driver.connection, opt.password);
      pn_sasl_set_allow_insecure_mechs(pn_sasl(transport), true);
      pn_sasl_allowed_mechs(pn_sasl(transport), "PLAIN");
    } else {
      pn_sasl_allowed_mechs(pn_sasl(transport), "ANONYMOUS");
    }
    pn_connection_open(c->driver.connection);
    c->session = pn_session(c->driver.connection);
    pn_session_open(c->session);
    make_links(c, conn_count);
  }
  pn_connection_driver_bind(&c->driver);
  conns = realloc(conns, sizeof *conns * (size_t)(conn_count + 1));
  conns[conn_count++] = c;
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) fail("epoll: %s", strerror(errno));
  return c;
}

static void dial(void) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) fail("connect to port %d: %s", opt.port, strerror(errno));
  adopt(fd, false);
}

/* --- sending --- */

static bool send_one(Conn *c, double due) {
  for (int tried = 0; tried < c->link_count; tried++) {
    pn_link_t *link = c->links[c->next_link];
    c->next_link = (c->next_link + 1) % c->link_count;
    if (pn_link_credit(link) <= 0) continue;
    uint32_t tag = (uint32_t)sent;
    pn_delivery(link, pn_dtag((const char *)&tag, sizeof tag));
    if (due_at) {
      due_at[sent] = due;
      memcpy(payload + body_at, &due, sizeof due);
    }
    pn_link_send(link, payload, payload_size);
    pn_link_advance(link);
    sent++, c->sent++, c->in_flight++;
    return true;
  }
  return false;
}

static void produce(Conn *c) {
  while (c->sent < c->quota && c->in_flight < opt.window && pn_session_outgoing_bytes(c->session) < AT_ONCE) {
    double due = 0;
    if (opt.rate > 0) {
      due = began + (double)sent / opt.rate;
      if (due > now()) return;
    }
    if (!send_one(c, due)) return;
  }
}

static void on_outcome(Conn *c, pn_delivery_t *delivery) {
  if (!pn_delivery_updated(delivery)) return;
  uint64_t state = pn_delivery_remote_state(delivery);
  if (!state && !pn_delivery_settled(delivery)) return;
  if (state == PN_RECEIVED) return;
  if (state != PN_ACCEPTED) refused++;
  if (due_at) {
    uint32_t number;
    memcpy(&number, pn_delivery_tag(delivery).start, sizeof number);
    latencies[latency_count++] = now() - due_at[number];
  }
  pn_delivery_settle(delivery);
  c->in_flight--;
  outcomes++;
}

/* --- receiving --- */

static void top_up(pn_link_t *link, int credit) {
  int missing = credit - pn_link_credit(link);
  if (missing * 2 >= credit) pn_link_flow(link, missing);
}

static void on_message(pn_delivery_t *delivery) {
  pn_link_t *link = pn_delivery_link(delivery);
  if (pn_delivery_readable(delivery) && !pn_delivery_partial(delivery)) {
    size_t size = pn_delivery_pending(delivery);
    arrived = realloc(arrived, size);
    pn_link_recv(link, arrived, size);
    pn_link_advance(link);
    received++;
    last_at = opt.quiet > 0 || opt.latency ? now() : 0;
    if (opt.latency && latency_count < opt.count) {
      double due;
      memcpy(&due, arrived + size - (size_t)opt.size, sizeof due);
      latencies[latency_count++] = last_at - due;
    }
    pn_delivery_update(delivery, PN_ACCEPTED);
    if (!opt.confirmed) {
      pn_delivery_settle(delivery);
      settled++;
    }
    if (received < opt.count) top_up(link, opt.credit);
  } else if (opt.confirmed && pn_delivery_settled(delivery)) {
    if (pn_delivery_remote_state(delivery) != PN_ACCEPTED) refused++;
    pn_delivery_settle(delivery);
    settled++;
  }
}

/* --- the sink --- */

static void feed(pn_link_t *link) {
  static uint32_t tag;
  pn_session_t *session = pn_link_session(link);
  while (pn_link_credit(link) > 0 && pn_session_outgoing_bytes(session) < AT_ONCE) {
    tag++;
    pn_delivery(link, pn_dtag((const char *)&tag, sizeof tag));
    pn_link_send(link, payload, payload_size);
    pn_link_advance(link);
  }
}

static void on_sink_delivery(pn_delivery_t *delivery) {
  pn_link_t *link = pn_delivery_link(delivery);
  if (pn_link_is_receiver(link)) {
    if (!pn_delivery_readable(delivery) || pn_delivery_partial(delivery)) return;
    pn_link_advance(link);
    pn_delivery_update(delivery, PN_ACCEPTED);
    pn_delivery_settle(delivery);
    top_up(link, SINK_CREDIT);
  } else if (pn_delivery_updated(delivery)) {
    pn_delivery_update(delivery, PN_ACCEPTED);
    pn_delivery_settle(delivery);
  }
}

static void handle_sink(Conn *c, pn_event_t *event) {
  pn_link_t *link = pn_event_link(event);
  switch (pn_event_type(event)) {
    case PN_CONNECTION_REMOTE_OPEN: pn_connection_open(c->driver.connection); break;
    case PN_SESSION_REMOTE_OPEN: pn_session_open(pn_event_session(event)); break;
    case PN_LINK_REMOTE_OPEN:
      pn_terminus_copy(pn_link_source(link), pn_link_remote_source(link));
      pn_terminus_copy(pn_link_target(link), pn_link_remote_target(link));
      pn_link_set_rcv_settle_mode(link, pn_link_remote_rcv_settle_mode(link));
      pn_link_open(link);
      if (pn_link_is_receiver(link)) pn_link_flow(link, SINK_CREDIT);
      break;
    case PN_LINK_FLOW:
      if (pn_link_is_sender(link)) feed(link);
      break;
    case PN_DELIVERY: on_sink_delivery(pn_event_delivery(event)); break;
    case PN_LINK_REMOTE_CLOSE: pn_link_close(link); break;
    case PN_CONNECTION_REMOTE_CLOSE: pn_connection_close(c->driver.connection); break;
    case PN_TRANSPORT_ERROR:
    case PN_TRANSPORT_CLOSED: c->gone = true; break;
    default: break;
  }
}

/* --- events --- */

static void check(const char *what, pn_condition_t *condition) {
  if (condition && pn_condition_is_set(condition))
    fail("%s: %s: %s", what, pn_condition_get_name(condition), pn_condition_get_description(condition));
}

static void handle(Conn *c, pn_event_t *event) {
  if (opt.mode == SINK) {
    handle_sink(c, event);
    return;
  }
  pn_link_t *link = pn_event_link(event);
  switch (pn_event_type(event)) {
    case PN_LINK_REMOTE_OPEN: {
      /* A link that is refused is opened without its terminus first, and closed with the reason right after. */
      pn_terminus_t *end = opt.mode == SEND ? pn_link_remote_target(link) : pn_link_remote_source(link);
      if (pn_terminus_get_type(end) != PN_UNSPECIFIED) c->opened++;
      break;
    }
    case PN_DELIVERY:
      if (opt.mode == SEND)
        on_outcome(c, pn_event_delivery(event));
      else
        on_message(pn_event_delivery(event));
      break;
    case PN_LINK_REMOTE_CLOSE:
    case PN_LINK_REMOTE_DETACH:
      check("link closed", pn_link_remote_condition(link));
      if (!closing) fail("the broker closed a link");
      c->closed++;
      break;
    case PN_SESSION_REMOTE_CLOSE: check("session ended", pn_session_remote_condition(pn_event_session(event))); break;
    case PN_CONNECTION_REMOTE_CLOSE:
      check("connection closed", pn_connection_remote_condition(c->driver.connection));
      if (!closing) fail("the broker closed the connection");
      break;
    case PN_TRANSPORT_ERROR: check("transport", pn_transport_condition(c->driver.transport)); break;
    case PN_TRANSPORT_CLOSED:
      if (!closing) fail("the connection is gone");
      c->gone = true;
      break;
    default: break;
  }
}

/* Handle what came in, make what there is to make, and write until the socket takes no more. */
static void pump(Conn *c) {
  for (;;) {
    pn_event_t *event;
    while ((event = pn_connection_driver_next_event(&c->driver))) handle(c, event);
    if (running && opt.mode == SEND) produce(c);
    if (opt.mode == SINK)
      for (pn_link_t *link = pn_link_head(c->driver.connection, PN_LOCAL_ACTIVE | PN_REMOTE_ACTIVE); link;
           link = pn_link_next(link, PN_LOCAL_ACTIVE | PN_REMOTE_ACTIVE))
        if (pn_link_is_sender(link)) feed(link);
    pn_bytes_t out = pn_connection_driver_write_buffer(&c->driver);
    if (!out.size) {
      if (!pn_connection_driver_has_event(&c->driver)) break;
      continue;
    }
    ssize_t written = send(c->fd, out.start, out.size, MSG_NOSIGNAL);
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!c->waits_for_room) {
        struct epoll_event more = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &more);
        c->waits_for_room = true;
      }
      return;
    }
    if (written < 0) {
      pn_connection_driver_close(&c->driver);
      continue;
    }
    pn_connection_driver_write_done(&c->driver, (size_t)written);
  }
  if (c->waits_for_room) {
    struct epoll_event less = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &less);
    c->waits_for_room = false;
  }
}

static void take_in(Conn *c) {
  pn_rwbytes_t room = pn_connection_driver_read_buffer_sized(&c->driver, READ_SIZE);
  if (!room.size) return;
  ssize_t size = recv(c->fd, room.start, room.size, 0);
  if (size > 0)
    pn_connection_driver_read_done(&c->driver, (size_t)size);
  else if (size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
    pn_connection_driver_read_close(&c->driver);
}

/* Wait up to so many seconds, and do what there is to do. */
static void turn(double seconds) {
  static double next_tick;
  struct timespec wait = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  struct pollfd one = {.fd = poller, .events = POLLIN};
  struct epoll_event ready[EVENTS];
  if (ppoll(&one, 1, &wait, NULL) > 0) {
    int number = epoll_wait(poller, ready, EVENTS, 0);
    for (int i = 0; i < number; i++) {
      Conn *c = ready[i].data.ptr;
      if (!c) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) pump(adopt(fd, true));
        continue;
      }
      if (c->gone) continue;
      if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) take_in(c);
      pump(c);
      if (c->gone) epoll_ctl(poller, EPOLL_CTL_DEL, c->fd, NULL), close(c->fd);
    }
  }
  double time = now();
  if (time >= next_tick) {
    next_tick = time + 1;
    for (int i = 0; i < conn_count; i++)
      if (!conns[i]->gone) {
        pn_transport_tick(conns[i]->driver.transport, (pn_timestamp_t)(time * 1000));
        pump(conns[i]);
      }
  }
}

/* --- the run --- */

static void wait_until_ready(void) {
  double deadline = now() + 60;
  for (int i = 0; i < conn_count; i++) pump(conns[i]);
  for (;;) {
    int missing = 0;
    for (int i = 0; i < conn_count; i++) missing += conns[i]->link_count - conns[i]->opened;
    if (!missing) return;
    if (now() > deadline) fail("%d links were not opened within a minute", missing);
    turn(0.1);
  }
}

static void run_send(void) {
  for (int i = 0; i < conn_count; i++) conns[i]->quota = opt.count / conn_count + (i < opt.count % conn_count);
  for (int i = 0; i < conn_count; i++) pump(conns[i]);
  double deadline = began + opt.seconds;
  while (outcomes < opt.count) {
    double wait = 0.1;
    if (opt.rate > 0 && sent < opt.count) {
      wait = began + (double)sent / opt.rate - now();
      if (wait <= 0) {
        for (int i = 0; i < conn_count; i++) pump(conns[i]);
        /* What is due but has no credit waits for the broker. */
        wait = began + (double)sent / opt.rate - now();
        if (wait <= 0) wait = 0.0005;
      }
    }
    turn(wait > 0.1 ? 0.1 : wait);
    double time = now();
    if (time > deadline) {
      for (int i = 0; i < conn_count; i++) conns[i]->quota = conns[i]->sent;
      opt.rate = 0;
      if (outcomes == sent || time > deadline + GRACE_SECONDS) break;
    }
  }
  ended = now();
}

static void run_receive(void) {
  last_at = began;
  for (int i = 0; i < conn_count; i++) {
    for (int link = 0; link < conns[i]->link_count; link++) pn_link_flow(conns[i]->links[link], opt.credit);
    pump(conns[i]);
  }
  double deadline = began + opt.seconds;
  while (received < opt.count || settled < received) {
    turn(0.05);
    double time = now();
    if (time > deadline) break;
    if (opt.quiet > 0 && settled == received && time > last_at + opt.quiet) break;
  }
  /* A broker that confirms nothing still answers in order: when a link is closed, what was settled before it is read. */
  closing = true;
  for (int i = 0; i < conn_count; i++) {
    for (int link = 0; link < conns[i]->link_count; link++) pn_link_close(conns[i]->links[link]);
    pump(conns[i]);
  }
  double patience = now() + GRACE_SECONDS;
  for (;;) {
    int missing = 0;
    for (int i = 0; i < conn_count; i++)
      if (!conns[i]->gone) missing += conns[i]->link_count - conns[i]->closed;
    if (!missing || now() > patience) break;
    turn(0.05);
  }
  ended = now();
  if (opt.quiet > 0 && received < opt.count) ended -= opt.quiet;
}

static void finish(void) {
  closing = true;
  running = false;
  for (int i = 0; i < conn_count; i++)
    if (!conns[i]->gone) {
      pn_connection_close(conns[i]->driver.connection);
      pump(conns[i]);
    }
  double patience = now() + 3;
  for (;;) {
    int left = 0;
    for (int i = 0; i < conn_count; i++) left += !conns[i]->gone;
    if (!left || now() > patience) return;
    turn(0.05);
  }
}

static int by_size(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return left < right ? -1 : left > right;
}

static double percentile(double percent) {
  long at = (long)((double)latency_count * percent / 100);
  return latencies[at < latency_count ? at : latency_count - 1];
}

static void report(double cpu) {
  long done = opt.mode == SEND ? outcomes : settled;
  printf("{\"count\": %ld, \"refused\": %ld, \"began\": %.6f, \"ended\": %.6f, \"cpu_seconds\": %.6f", done, refused,
         began, ended, cpu);
  if (latency_count) {
    qsort(latencies, (size_t)latency_count, sizeof *latencies, by_size);
    printf(", \"latency\": {\"p50\": %.6f, \"p99\": %.6f, \"p99.9\": %.6f, \"most\": %.6f}", percentile(50),
           percentile(99), percentile(99.9), latencies[latency_count - 1]);
  }
  printf("}\n");
  fflush(stdout);
}

static double cpu_now(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void run_sink(void) {
  struct sockaddr_in at = {.sin_family = AF_INET};
  socklen_t size = sizeof at;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 128) ||
      getsockname(listener, (struct sockaddr *)&at, &size))
    fail("listen: %s", strerror(errno));
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
  printf("%d\n", ntohs(at.sin_port));
  fflush(stdout);
  for (;;) turn(1);
}

static void parse(int count, char **values) {
  enum { ADDRESS = 1, PORT, USER, PASSWORD, QUEUES, CONNECTIONS, SIZE, WINDOW, CREDIT, COUNT, SECONDS, RATE, QUIET };
  enum { CONFIRMED = 100, LATENCY };
  static const struct option options[] = {
      {"address", required_argument, NULL, ADDRESS},   {"port", required_argument, NULL, PORT},
      {"user", required_argument, NULL, USER},         {"password", required_argument, NULL, PASSWORD},
      {"queues", required_argument, NULL, QUEUES},     {"connections", required_argument, NULL, CONNECTIONS},
      {"size", required_argument, NULL, SIZE},         {"window", required_argument, NULL, WINDOW},
      {"credit", required_argument, NULL, CREDIT},     {"count", required_argument, NULL, COUNT},
      {"seconds", required_argument, NULL, SECONDS},   {"rate", required_argument, NULL, RATE},
      {"quiet", required_argument, NULL, QUIET},       {"confirmed", no_argument, NULL, CONFIRMED},
      {"latency", no_argument, NULL, LATENCY},         {0}};
  if (count < 2) fail("usage: load send|receive|sink [options]");
  if (!strcmp(values[1], "send"))
    opt.mode = SEND;
  else if (!strcmp(values[1], "receive"))
    opt.mode = RECEIVE;
  else if (!strcmp(values[1], "sink"))
    opt.mode = SINK;
  else
    fail("unknown mode %s", values[1]);
  int option;
  while ((option = getopt_long(count - 1, values + 1, "", options, NULL)) != -1) switch (option) {
      case ADDRESS: opt.address = optarg; break;
      case PORT: opt.port = atoi(optarg); break;
      case USER: opt.user = optarg; break;
      case PASSWORD: opt.password = optarg; break;
      case QUEUES: opt.queues = atoi(optarg); break;
      case CONNECTIONS: opt.connections = atoi(optarg); break;
      case SIZE: opt.size = atoi(optarg); break;
      case WINDOW: opt.window = atoi(optarg); break;
      case CREDIT: opt.credit = atoi(optarg); break;
      case COUNT: opt.count = atol(optarg); break;
      case SECONDS: opt.seconds = atof(optarg); break;
      case RATE: opt.rate = atof(optarg); break;
      case QUIET: opt.quiet = atof(optarg); break;
      case CONFIRMED: opt.confirmed = true; break;
      case LATENCY: opt.latency = true; break;
      default: exit(2);
    }
  if (opt.size < 8 || opt.count < 1 || opt.connections < 1 || opt.queues < 1) fail("an option is out of bounds");
}

int main(int count, char **values) {
  parse(count, values);
  poller = epoll_create1(EPOLL_CLOEXEC);
  make_payload();
  if (opt.mode == SINK) run_sink();
  if (opt.rate > 0) due_at = calloc((size_t)opt.count, sizeof *due_at);
  if (opt.rate > 0 || opt.latency) latencies = calloc((size_t)opt.count, sizeof *latencies);
  for (int i = 0; i < opt.connections; i++) dial();
  wait_until_ready();
  printf("ready\n");
  fflush(stdout);
  char line[16];
  if (!fgets(line, sizeof line, stdin)) return 1;
  double spent = cpu_now();
  running = true;
  began = now();
  if (opt.mode == SEND)
    run_send();
  else
    run_receive();
  report(cpu_now() - spent);
  finish();
  return 0;
}
