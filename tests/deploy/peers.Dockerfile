# What the images beside ours do, as far as deploy/compose.yaml relies on it, made of one root of Debian.
FROM scratch AS root
ADD base.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8

FROM root AS debian
RUN ln -s python3 /usr/bin/python

FROM root AS redis
RUN install -d -o redis -g redis /data
USER redis
WORKDIR /data
VOLUME /data
CMD ["redis-server"]

FROM root AS nginx
RUN rm -f /etc/nginx/sites-enabled/* && ln -sf /dev/stdout /var/log/nginx/access.log \
    && ln -sf /dev/stderr /var/log/nginx/error.log
STOPSIGNAL SIGQUIT
CMD ["nginx", "-g", "daemon off;"]

FROM root AS postgres
ENV PATH=/usr/lib/postgresql/17/bin:$PATH PGDATA=/var/lib/postgresql/data
RUN install -d -o postgres -g postgres -m 0700 "$PGDATA" /run/postgresql
# A first start makes the database and its user.
RUN printf '%s\n' '#!/bin/bash' 'set -e' 'if [ ! -s "$PGDATA/PG_VERSION" ]; then' \
    '  initdb --username="$POSTGRES_USER" --pwfile=<(echo "$POSTGRES_PASSWORD") --auth-host=scram-sha-256 >/dev/null' \
    '  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"' \
    '  pg_ctl --wait --options="-c listen_addresses=" start >/dev/null' \
    '  createdb --username="$POSTGRES_USER" "$POSTGRES_DB"' '  pg_ctl --wait stop >/dev/null' 'fi' \
    'exec postgres -c listen_addresses="*"' >/usr/local/bin/start && chmod +x /usr/local/bin/start
USER postgres
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
CMD ["start"]
